//! Read-only socket: the routes of the control socket, for clients that may look and change nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use super::handlers::HttpError;
use super::peer::only_reads;
use super::unread::Unread;
use crate::limits::{CONTROL_BODY_BYTES_MAX, UNREAD_BYTES_MAX};

/// Condition on requests, and the right of one of them to be served.
struct Gate {
    /// Control socket, which takes the others.
    main: PathBuf,
    /// One request at a time is served: many of them would keep the control socket waiting.
    turn: Semaphore,
    unread: Unread,
}

/// Admits those requests of `router` that change nothing.
pub(super) fn router(router: Router, main: PathBuf) -> Router {
    gated(router, main, Unread::new(UNREAD_BYTES_MAX))
}

fn gated(router: Router, main: PathBuf, unread: Unread) -> Router {
    router.layer(from_fn_with_state(Arc::new(Gate { main, turn: Semaphore::new(1), unread }), admit))
}

async fn admit(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if !only_reads(&request) {
        let refusal = refusal(&request, &gate.main);
        discard(request.into_body()).await;
        return refusal.into_response();
    }
    // Nothing closes the semaphore.
    let _turn = gate.turn.acquire().await;
    gate.unread.bounded(next.run(request).await)
}

/// Receives a body without keeping it. A client that still sends one would not read the response.
async fn discard(mut body: Body) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > CONTROL_BODY_BYTES_MAX {
            return;
        }
    }
}

fn refusal(request: &Request, main: &Path) -> HttpError {
    let error = format!(
        "{} {} is refused: this socket is read-only; changes and captures go through {} (--socket)",
        request.method(),
        request.uri().path(),
        main.display()
    );
    HttpError::new(StatusCode::FORBIDDEN, error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::watch;
    use tokio::time::{sleep, timeout};

    use super::super::connections::{Limits, serve};
    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);
    /// More than the buffers of a socket take.
    const MUCH: usize = 4 << 20;

    /// Asks, and reads the first line of the response.
    async fn asked(path: &Path, what: &str) -> (UnixStream, String) {
        let mut stream = UnixStream::connect(path).await.unwrap();
        let head = format!("GET {what} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        timeout(TIMEOUT, stream.read_exact(&mut line)).await.expect("a response").unwrap();
        (stream, String::from_utf8_lossy(&line).into_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slow_readers_hold_a_bounded_number_of_large_responses() {
        let path = std::env::temp_dir().join(format!("palisade-unread-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let router = Router::new()
            .route("/much", get(async || "x".repeat(MUCH)))
            .route("/little", get(async || "here"));
        let router = gated(router, PathBuf::from("main"), Unread::new(2 * MUCH));
        let (_stop, stopping) = watch::channel(());
        let limits = Limits::for_process(64, TIMEOUT, 1 << 20);
        let server = tokio::spawn(serve(listener, move |_: &UnixStream| router.clone(), limits, stopping));

        let (first, line) = asked(&path, "/much").await;
        assert_eq!(line, "HTTP/1.1 200");
        let (_second, line) = asked(&path, "/much").await;
        assert_eq!(line, "HTTP/1.1 200");
        let (mut refused, line) = asked(&path, "/much").await;
        assert_eq!(line, "HTTP/1.1 503", "two readers have not read theirs");
        let mut text = String::new();
        refused.read_to_string(&mut text).await.unwrap();
        assert!(text.contains("other readers"), "{text}");
        assert_eq!(asked(&path, "/little").await.1, "HTTP/1.1 200");

        // A reader that has read all, or has gone, leaves its place.
        let mut rest = Vec::new();
        let mut first = first;
        timeout(TIMEOUT, first.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert!(rest.len() > MUCH && !String::from_utf8_lossy(&rest[..200]).contains("chunked"));
        let again = async {
            while asked(&path, "/much").await.1 != "HTTP/1.1 200" {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TIMEOUT, again).await.expect("the place is free again");
        server.abort();
        std::fs::remove_file(&path).unwrap();
    }
}
