//! Streams whose reader keeps a least pace.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Stream that fails once its reader takes fewer bytes in a time than it has to, while more wait for it. One byte now and then would otherwise
/// hold a response, and its memory, for as long as the reader likes.
pub(super) struct PacedStream<S> {
    stream: S,
    time: Duration,
    bytes_min: usize,
    /// Time since which the reader is late, and the bytes that it has taken since then. `None` while nothing waits.
    late: Option<(Instant, usize)>,
}

impl<S> PacedStream<S> {
    /// Wraps a stream whose reader takes `bytes_min` bytes in a time.
    pub(super) fn new(stream: S, time: Duration, bytes_min: usize) -> PacedStream<S> {
        PacedStream { stream, time, bytes_min, late: None }
    }

    /// Records the outcome of an attempt to write. A reader that is too slow is an error.
    fn pace(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match (&mut self.late, &written) {
            (None, Poll::Pending) => self.late = Some((Instant::now(), 0)),
            (Some((since, taken)), _) => {
                *taken += if let Poll::Ready(Ok(bytes)) = written { bytes } else { 0 };
                if *taken >= self.bytes_min {
                    self.late = Some((Instant::now(), 0));
                } else if since.elapsed() >= self.time {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            (None, Poll::Ready(_)) => {}
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PacedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pace(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.pace(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes. The writer does so once it has written all that it has.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.late = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
