"""What holds for all tests."""

import signal

# A shell starts what it runs in the background without Ctrl-C; tests press it themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
