//! Texts of a response: the pages of a list, the events of a watch.

use std::time::Duration;

use kube::client::Body;
use serde::Deserialize;
use tokio::time::timeout;

use super::connection::{Failure, next_bytes};
use super::filter::{Filter, Keep, Piece};
use crate::limits::OBJECT_BYTES_MAX;

/// Reader of a response.
pub(super) struct Reader {
    filter: Filter,
    idle: Duration,
}

impl Reader {
    pub(super) fn new(keep: &'static Keep, idle: Duration) -> Reader {
        Reader { filter: Filter::new(keep, OBJECT_BYTES_MAX), idle }
    }

    /// Texts of the next bytes; `None` at the end.
    pub(super) async fn next(&mut self, body: &mut Body) -> Result<Option<Vec<Piece>>, Failure> {
        let next = timeout(self.idle, next_bytes(body)).await.map_err(|_| {
            Failure::Broken(format!(
                "the connection was silent for {} s, and is opened again",
                self.idle.as_secs()
            ))
        })?;
        match next {
            Some(bytes) => {
                self.filter.feed(&bytes?).map(Some).map_err(|error| Failure::Broken(error.to_string()))
            }
            None if self.filter.is_between_documents() => Ok(None),
            None => Err(Failure::Broken("the response ends in the middle of an object".to_owned())),
        }
    }
}

/// Object of an event. The filter keeps `type` and `object` alone.
pub(super) fn object_of(piece: &Piece) -> Piece {
    #[derive(Deserialize)]
    struct Enclosed<'t> {
        #[serde(borrow)]
        object: &'t serde_json::value::RawValue,
    }
    let text = match serde_json::from_str::<Enclosed<'_>>(&piece.text) {
        Ok(enclosed) => enclosed.object.get().to_owned(),
        // Everything after the key, as far as it goes.
        Err(_) => piece.text.split_once("\"object\":").map(|(_, rest)| rest.to_owned()).unwrap_or_default(),
    };
    Piece { text, is_cut: piece.is_cut, is_item: piece.is_item }
}

/// `type` of an event whose text is cut: the API server writes it first.
pub(super) fn type_of_cut(text: &str) -> Option<String> {
    let (name, _) = text.strip_prefix("{\"type\":\"")?.split_once('"')?;
    Some(name.to_owned())
}
