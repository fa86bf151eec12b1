// SPDX-License-Identifier: Apache-2.0
// main.c: parse, run, and turn the status into an exit code.
#include <stdio.h>

#include "cli/cli.h"

static int exit_code(enum status status)
{
    switch (status) {
    case STATUS_OK: return 0;
    case ERR_USAGE: return 2;
    case ERR_INTERRUPTED: return 3;
    case ERR_PEER: return 4;
    default: return 1;
    }
}

int main(int argc, char **argv)
{
    struct command command;
    stop_signals_install();
    enum status status = command_parse(argc, argv, &command);
    if (status == STATUS_OK && command.mode) {
        status = command.mode->run(&command.options, command.config);
    }
    if (status != STATUS_OK) {
        fflush(stdout);
        const struct error_record *error = error_get();
        bool details = log_get_level() >= LOG_INFO;
        fprintf(stderr, "%s: %s%s%s%s\n", status == ERR_INTERRUPTED ? "stopped" : "error",
                error->message, details ? " [" : "", details ? error->trail : "",
                details ? "]" : "");
    } else if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "error: standard output could not be written\n");
        status = ERR_IO;
    }
    command_release(&command);
    return exit_code(status);
}
