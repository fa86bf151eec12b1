// SPDX-License-Identifier: Apache-2.0
// events.c: TFRecord framing and TensorBoard's event files.
//   record: uint64 length, masked crc32c of it, bytes, masked crc32c of them
//   Event { wall_time 1 double, step 2, file_version 3, summary 5 { value 1 { tag 1, simple_value 2 } } }
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "trainer/file.h"
#include "trainer/io.h"

void record_frame(struct text *out, const void *bytes, size_t size)
{
    uint64_t length = size;
    uint32_t head = crc32c_mask(crc32c(0, &length, sizeof length));
    uint32_t tail = crc32c_mask(crc32c(0, bytes, size));
    text_append_bytes(out, &length, sizeof length);
    text_append_bytes(out, &head, sizeof head);
    text_append_bytes(out, bytes, size);
    text_append_bytes(out, &tail, sizeof tail);
}

struct event_writer {
    int fd;
    char *path;
};

static enum status put_event(struct event_writer *writer, struct text *event)
{
    struct text frame = {0};
    record_frame(&frame, event->data, event->size);
    enum status status = file_append(writer->fd, writer->path, frame.data, frame.size);
    text_release(&frame);
    text_release(event);
    return status;
}

enum status event_open(const char *directory, struct event_writer **out)
{
    static int opened;  // two files of one second and process get different names
    char host[128] = "localhost";
    (void)gethostname(host, sizeof host - 1);
    struct event_writer *writer = MEM_NEW(struct event_writer);
    struct text path = {0};
    text_printf(&path, "%s/events.out.tfevents.%lld.%s.%ld.%d.v2", directory,
                (long long)time(NULL), host, (long)getpid(),
                __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED));
    writer->path = path.data;
    writer->fd = -1;
    *out = NULL;
    struct text event = {0};
    wire_double(&event, 1, time_wall());
    wire_string(&event, 3, "brain.Event:2");
    enum status status = file_append_open(writer->path, true, &writer->fd);
    if (status == STATUS_OK) {
        status = put_event(writer, &event);
    }
    text_release(&event);
    if (status != STATUS_OK) {
        event_close(writer);
        return status;
    }
    *out = writer;
    return STATUS_OK;
}

enum status event_scalar(struct event_writer *writer, const char *tag, int64_t step, double value)
{
    struct text scalar = {0}, summary = {0}, event = {0};
    wire_string(&scalar, 1, tag);
    wire_float(&scalar, 2, (float)value);
    wire_message(&summary, 1, &scalar);
    wire_double(&event, 1, time_wall());
    wire_varint(&event, 2, (uint64_t)step);
    wire_message(&event, 5, &summary);
    text_release(&scalar);
    text_release(&summary);
    return put_event(writer, &event);
}

void event_close(struct event_writer *writer)
{
    if (writer) {
        if (writer->fd >= 0) {
            close(writer->fd);
        }
        mem_free(writer->path);
        mem_free(writer);
    }
}
