//! Reader of the output of a command that goes on.

use std::io::{self, stdout};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};

/// Ends the process once the reader of standard output has closed it, as `head` does: a command that waits for events would
/// otherwise end with the next one only.
pub(in crate::cli) fn end_with_reader() -> io::Result<()> {
    let wait = || {
        let out = stdout();
        // No event is asked for: the kernel reports POLLERR and POLLHUP always (poll(2)).
        let mut ends = [PollFd::new(&out, PollFlags::empty())];
        while let Err(error) = poll(&mut ends, None) {
            if error != rustix::io::Errno::INTR {
                return;
            }
        }
        std::process::exit(0);
    };
    thread::Builder::new().name("palisade-reader".to_owned()).spawn(wait).map(drop)
}
