//! Requests and answers of the fake API server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::Faults;

/// Path and kind of each collection.
pub(crate) const COLLECTIONS: [(&str, &str, &str); 9] = [
    ("/api/v1/namespaces", "v1", "Namespace"),
    ("/api/v1/nodes", "v1", "Node"),
    ("/api/v1/pods", "v1", "Pod"),
    ("/api/v1/services", "v1", "Service"),
    ("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "networking.k8s.io/v1", "NetworkPolicy"),
    (
        "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
        "policy.networking.k8s.io/v1alpha2",
        "ClusterNetworkPolicy",
    ),
    (
        "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies",
        "policy.networking.k8s.io/v1alpha1",
        "AdminNetworkPolicy",
    ),
    (
        "/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies",
        "policy.networking.k8s.io/v1alpha1",
        "BaselineAdminNetworkPolicy",
    ),
];

pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn read_request(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Ok(Some(Request { method, path: path.to_owned(), query, authorization, body }))
}

pub(crate) fn respond(mut stream: &TcpStream, code: u16, body: &str, headers: &str) -> io::Result<bool> {
    let head = format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    Ok(true)
}

pub(crate) fn status(stream: &TcpStream, code: u16, message: &str) -> io::Result<bool> {
    let body =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code});
    respond(stream, code, &body.to_string(), if code == 429 { "retry-after: 1\r\n" } else { "" })
}

/// Answers requests for the lists of APIs.
pub(crate) fn discovery(stream: &TcpStream, path: &str, faults: &Faults) -> io::Result<bool> {
    // Group and version, plural, kind.
    let mut served: Vec<(String, &str, &str)> = Vec::new();
    for (path, version, kind) in COLLECTIONS {
        let plural = path.rsplit('/').next().unwrap();
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        match (faults.absent.contains(kind), faults.other_version) {
            (false, _) => served.push((version.to_owned(), plural, kind)),
            (true, Some(other)) => served.push((format!("{group}/{other}"), plural, kind)),
            (true, None) => {}
        }
    }
    let resources = |group_version: &str| {
        let of_group = served.iter().filter(|(version, ..)| version == group_version);
        let resources: Vec<Value> = of_group
            .map(|(_, name, kind)| {
                let namespaced = matches!(*kind, "Pod" | "NetworkPolicy" | "Service" | "EndpointSlice");
                json!({"name": name, "singularName": kind.to_lowercase(), "kind": kind, "namespaced": namespaced,
                    "verbs": ["list", "watch", "get"]})
            })
            .collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
    };
    let body = match path {
        "/version" => json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0"}),
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/apis" => {
            let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for (group, version) in served.iter().filter_map(|(version, ..)| version.split_once('/')) {
                groups.entry(group).or_default().insert(version);
            }
            let groups: Vec<Value> = groups
                .iter()
                .map(|(name, versions)| {
                    let versions: Vec<Value> = versions
                        .iter()
                        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
                        .collect();
                    json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
                })
                .collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        "/api/v1" => resources("v1"),
        path if path.starts_with("/apis/") && path.split('/').count() == 4 => {
            resources(&path["/apis/".len()..])
        }
        _ => return status(stream, 404, "the server could not find the requested resource"),
    };
    respond(stream, 200, &body.to_string(), "")
}
