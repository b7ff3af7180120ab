//! Responses that wait for their readers: bounded in bytes, since many slow readers would otherwise hold a large response
//! each.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::handlers::HttpError;

/// Responses of fewer bytes always have a place: connections are bounded too.
const SMALL_BYTES: u64 = 64 << 10;
/// Bytes of a permit. The number of permits at a time has 32 bits.
const UNIT_BYTES: u64 = 1 << 10;

/// Place for responses that wait for the readers of one listener.
pub(super) struct Unread {
    units: u32,
    free: Arc<Semaphore>,
}

/// Part of a response, with the place of the whole.
struct Part {
    bytes: Bytes,
    _place: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Unread {
    /// Place for this number of bytes.
    pub(super) fn new(bytes_max: usize) -> Unread {
        let units = (bytes_max as u64 / UNIT_BYTES) as u32;
        Unread { units, free: Arc::new(Semaphore::new(units as usize)) }
    }

    /// Gives a response its place until all of it is written; an error takes its turn if there is none. A response that is larger
    /// than all places takes all of them. Streams have bounds of their own.
    pub(super) fn bounded(&self, response: Response) -> Response {
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        if bytes < SMALL_BYTES {
            return response;
        }
        let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).min(self.units);
        let Ok(place) = self.free.clone().try_acquire_many_owned(units) else {
            let error = "other readers have not read their large responses yet: try again, or ask for less";
            return HttpError::new(StatusCode::SERVICE_UNAVAILABLE, error).into_response();
        };
        let place = Arc::new(place);
        response.map(|body| Body::new(Placed { body, place }))
    }
}

/// Body with its place. It ends before its last bytes are written, so that each of its parts keeps the place too.
struct Placed {
    body: Body,
    place: Arc<OwnedSemaphorePermit>,
}

impl HttpBody for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let place = self.place.clone();
        let part = |bytes| Bytes::from_owner(Part { bytes, _place: place });
        Pin::new(&mut self.body)
            .poll_frame(context)
            .map(|frame| Some(frame?.map(|frame| frame.map_data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
