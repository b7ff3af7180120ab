//! Objects that agents write to the fake API server: the Lease, and the status of policies.

use serde_json::{Value, json};

use super::requests::{COLLECTIONS, Request};
use super::{State, key_of};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// Answers a request for such an object; `None` for any other one.
pub(super) fn answer(state: &mut State, request: &Request) -> Option<(u16, Value)> {
    let path = &*request.path;
    if path.starts_with(LEASES) {
        return Some(lease(state, request));
    }
    let ["", "apis", group @ "policy.networking.k8s.io", version, plural, name, ..] =
        path.split('/').collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let (_, served, kind) =
        COLLECTIONS.iter().find(|(all, ..)| all.contains(group) && all.ends_with(&format!("/{plural}")))?;
    let served = match (state.faults.absent.contains(kind), state.faults.other_version) {
        (false, _) => served.rsplit('/').next(),
        (true, other) => other,
    };
    if served != Some(version) {
        return Some((404, json!({"message": "the server could not find the requested resource"})));
    }
    let known = state.objects.get(kind).and_then(|objects| objects.get(&format!("/{name}")));
    let Some(known) = known else { return Some((404, json!({"message": "not found"}))) };
    let mut object: Value = serde_json::from_str(known).unwrap();
    if request.method == "PATCH" {
        let patch: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!((&patch["kind"], key_of(&patch)), (&object["kind"], format!("/{name}")));
        // "invalid object type": a server takes no other version than that of the path.
        assert_eq!(patch["apiVersion"], format!("{group}/{version}"));
        assert!(path.ends_with("/status") && request.query["fieldManager"] == "palisade", "{path}");
        let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        for condition in patch["status"]["conditions"].as_array().unwrap() {
            conditions.retain(|known| known["type"] != condition["type"]);
            conditions.push(condition.clone());
        }
        object["status"] = json!({"conditions": conditions});
        state.put(object.clone());
    }
    Some((200, object))
}

fn lease(state: &mut State, request: &Request) -> (u16, Value) {
    let body = || serde_json::from_slice::<Value>(&request.body).unwrap();
    let known = state.lease.clone();
    let mut wanted = match (&*request.method, known) {
        ("GET", Some(lease)) => return (200, lease),
        ("GET", None) => return (404, json!({"message": "not found"})),
        ("POST", None) => body(),
        ("PUT", Some(lease))
            if lease["metadata"]["resourceVersion"] == body()["metadata"]["resourceVersion"] =>
        {
            body()
        }
        _ => return (409, json!({"message": "another agent was first"})),
    };
    state.version += 1;
    wanted["metadata"]["resourceVersion"] = json!(state.version.to_string());
    state.lease = Some(wanted.clone());
    (200, wanted)
}
