//! Look into the list of APIs for a kind that may be absent.

use std::time::Duration;

use axum::http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::source::kubernetes::connection::{Connection, next_bytes};
use crate::source::kubernetes::kinds::Kind;

/// Most bytes of a list of APIs.
const BYTES_MAX: usize = 4 << 20;
/// Most versions of a group whose resources are read.
const VERSIONS_MAX: usize = 16;

/// `APIGroupList`.
#[derive(Deserialize)]
struct Groups {
    kind: String,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// `APIResourceList`.
#[derive(Deserialize)]
struct Resources {
    kind: String,
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

/// Finds another version than `current` in which the server has a kind and this agent reads it; `None` if the server has it in no
/// version. The error says why neither is certain.
pub(super) async fn find(
    connection: &Connection,
    kind: &Kind,
    current: &str,
    idle: Duration,
) -> Result<Option<&'static str>, String> {
    let list: Groups = document(connection, "/apis", idle).await?;
    if list.kind != "APIGroupList" {
        return Err("its answer to /apis is no list of APIs".to_owned());
    }
    let groups = list.groups.into_iter().filter(|group| group.name == kind.group);
    let versions: Vec<String> =
        groups.flat_map(|group| group.versions).map(|version| version.version).collect();
    if versions.len() > VERSIONS_MAX {
        return Err(format!("it has more than {VERSIONS_MAX} versions of {}", kind.group));
    }
    let (mut readable, mut unreadable) = (None, None);
    for version in versions {
        if !version.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("it has an unreadable version of {}", kind.group));
        }
        let path = format!("/apis/{}/{version}", kind.group);
        let list: Resources = document(connection, &path, idle).await?;
        if list.kind != "APIResourceList" {
            return Err(format!("its answer to {path} is no list of resources"));
        }
        if !list.resources.iter().any(|resource| resource.name == kind.plural) {
            continue;
        }
        if version == current {
            return Err(format!("{path} has them, so that the answer may change"));
        }
        match kind.versions.iter().find(|known| **known == version) {
            Some(known) => readable = Some(*known),
            None => unreadable = Some(version),
        }
    }
    match unreadable.filter(|_| readable.is_none()) {
        Some(version) => {
            let read = kind.versions.join(" and ");
            Err(format!("it has them in version {version}, but this agent reads {read} alone"))
        }
        None => Ok(readable),
    }
}

/// Reads a document of the server.
async fn document<D: DeserializeOwned>(
    connection: &Connection,
    path: &str,
    idle: Duration,
) -> Result<D, String> {
    let response = connection.send(Method::GET, path, None).await;
    let mut body = response.map_err(|failure| format!("{path} cannot be read: {failure}"))?.into_body();
    let mut text = Vec::new();
    loop {
        let next = timeout(idle, next_bytes(&mut body)).await;
        let Some(bytes) = next.map_err(|_| format!("{path} cannot be read: the server is silent"))? else {
            break;
        };
        text.extend_from_slice(&bytes.map_err(|failure| format!("{path} cannot be read: {failure}"))?);
        if text.len() > BYTES_MAX {
            return Err(format!("{path} has more than {BYTES_MAX} bytes"));
        }
    }
    serde_json::from_slice(&text).map_err(|error| format!("{path} cannot be read: {error}"))
}
