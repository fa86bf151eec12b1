// SPDX-License-Identifier: Apache-2.0
// digits.c: the subset of MNIST that comes with the program, inside the executable. TRAINER_DIGITS
// is its folder in the source tree (data/digits; licence and origin are described there).
#include "digits_impl.h"

#define EMBED(symbol, file)                                   \
    __asm__(".section .rodata\n"                              \
            ".balign 16\n"                                    \
            ".global digits_" #symbol "\n"                    \
            ".global digits_" #symbol "_end\n"                \
            "digits_" #symbol ":\n"                           \
            ".incbin \"" TRAINER_DIGITS "/" file "\"\n"       \
            "digits_" #symbol "_end:\n"                       \
            ".byte 0\n"                                       \
            ".previous\n");                                   \
    extern const unsigned char digits_##symbol[], digits_##symbol##_end[]

EMBED(train_images, "train-images-idx3-ubyte.gz");
EMBED(train_labels, "train-labels-idx1-ubyte.gz");
EMBED(t10k_images, "t10k-images-idx3-ubyte.gz");
EMBED(t10k_labels, "t10k-labels-idx1-ubyte.gz");

struct digits_file digits_file(bool validation, bool labels)
{
    const unsigned char *const begin[] = {digits_train_images, digits_train_labels,
                                          digits_t10k_images, digits_t10k_labels};
    const unsigned char *const end[] = {digits_train_images_end, digits_train_labels_end,
                                        digits_t10k_images_end, digits_t10k_labels_end};
    int i = 2 * validation + labels;
    return (struct digits_file){begin[i], (size_t)(end[i] - begin[i])};
}
