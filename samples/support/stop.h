// Graceful stop on Ctrl-C: the program finishes the current step and saves. A second Ctrl-C kills it, except within half
// a second of the first.
#pragma once

namespace samples {

// Makes SIGINT and SIGTERM set a flag.
void install_stop_handler();
// Ignores SIGINT and SIGTERM: everything is saved, and the program is about to exit.
void ignore_stop_signals();
// The signal received, or 0.
int stop_signal();
// Tells the handler whether a progress bar has hidden the terminal's cursor, so that it must show the cursor.
void set_cursor_hidden(bool hidden);

}  // namespace samples
