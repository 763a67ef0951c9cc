// Ctrl-C as a request: the step in progress is finished and saved. A second Ctrl-C ends the program at once.
#pragma once

namespace samples {

// From now on SIGINT and SIGTERM set a flag.
void install_stop_handler();
// SIGINT and SIGTERM do nothing any more: everything is saved, and the program is about to end by itself.
void ignore_stop_signals();
// The signal that came, or 0.
int stop_signal();
// Whether the handler should show the terminal's cursor, which a progress bar has hidden.
void set_cursor_hidden(bool hidden);

}  // namespace samples
