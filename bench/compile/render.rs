//! Rendering of compiled tables in the terms of other systems, and of the change of one pod.

use std::time::Instant;

use palisade::policy::objects::{NetworkPolicy, Object, PortMatch, Ports};
use palisade::policy::{Change, Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderOptions, difference, render};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::ms;

/// Renders a cluster with rules for every pod: `ms` is the compile and the rendering. Then a pod loses its labels, and
/// `change_ms` and `change_lines` are of the difference.
pub(crate) fn measure(pods: usize, format: Format) -> Value {
    let mut cluster = Cluster::new(pods);
    let mut objects = cluster.objects();
    if matches!(format, Format::Contiv | Format::Vpptcp) {
        objects.iter_mut().for_each(without_ranges);
    }
    let options = RenderOptions::default();
    let start = Instant::now();
    let mut compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    let compiled = ms(start);
    let state = ClusterState { tables: compiler.tables(), objects: &objects };
    let parts = render(format, state, &options).expect("the format expresses the cluster");
    let time = ms(start);
    let old = compiler.tables().clone();
    let changed = cluster.any_pod(false);
    let mut pod = cluster.pods[changed].clone();
    pod.labels.clear();
    let new_objects: Vec<Object> = objects
        .iter()
        .map(|object| match object {
            Object::Pod(old) if old.name == pod.name => Object::Pod(pod.clone()),
            other => other.clone(),
        })
        .collect();
    compiler.apply(Change::Upsert(Object::Pod(pod)));
    let old = ClusterState { tables: &old, objects: &objects };
    let new = ClusterState { tables: compiler.tables(), objects: &new_objects };
    let start = Instant::now();
    let change = difference(format, old, new, &options).expect("the format expresses the cluster");
    json!({
        "pods": pods, "policies": cluster.policies(), "ms": time, "compile_ms": compiled, "bytes": bytes(&parts),
        "lines": lines(&parts), "change_ms": ms(start), "change_lines": lines(&change),
    })
}

/// Leaves the first port of each range: rules of Contiv and of VPP's sessions have single ports, and the formats refuse
/// wide ranges.
fn without_ranges(object: &mut Object) {
    let Object::NetworkPolicy(NetworkPolicy { ingress, egress, .. }) = object else { return };
    for rule in ingress.iter_mut().chain(egress).flatten() {
        let Ports::Any(matches) = &mut rule.ports else { continue };
        for matched in matches {
            if let PortMatch::Range { first, last, .. } = matched {
                *last = *first;
            }
        }
    }
}

fn bytes(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.text.len()).sum()
}

fn lines(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.text.lines().count()).sum()
}
