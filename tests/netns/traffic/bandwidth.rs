//! Bandwidth of pods between kernel stacks.

use std::time::Duration;

use palisade::dataplane::{Bandwidth, Bits};
use palisade::lab::PodPorts;
use palisade::lab::traffic::{Outcome, Server, Services, ping, transfer, udp_exchange};

use super::rig_of;
use crate::support::{PORT, Rig, TIMEOUT, assert_accounted, eventually, isolated};

const BYTES: u64 = 1 << 20;

/// Wait for an answer before the next try.
const RETRY: Duration = Duration::from_millis(200);

/// Frames dropped for a reason.
fn count(rig: &Rig, reason: &str) -> u64 {
    rig.drops().get(reason).copied().unwrap_or_default()
}

#[test]
fn a_transfer_beyond_the_rate_of_its_pod_arrives_whole_and_other_pods_have_theirs() {
    let Some(_isolated) = isolated() else { return };
    limited(PodPorts::Veth);
}

pub(super) fn limited(ports: PodPorts) {
    let rig = rig_of(ports, &["client", "server", "other"], 2, "");
    let [client, server, other] = ["client", "server", "other"].map(|name| rig.pod(name));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let name = "default/client".parse().unwrap();
    let limit = |bandwidth: Bandwidth| rig.switch.client().limit_pod(&name, &bandwidth).unwrap().bandwidth;
    let rates = Bandwidth {
        ingress_rate: Some(Bits(40_000_000)),
        egress_rate: Some(Bits(20_000_000)),
        egress_burst: Some(Bits(2_000_000)),
        ..Bandwidth::default()
    };
    assert_eq!(limit(rates), rates);
    for address in server.addresses() {
        let before = rig.drops();
        let new = |reason: &str| count(&rig, reason) - before.get(reason).copied().unwrap_or_default();
        eventually("a transfer is faster than the rate of its pod, and TCP adapts to it", || {
            transfer(&client, address, PORT, BYTES, TIMEOUT).unwrap();
            new("bandwidth-egress") > 0
        });
        // The transfer leaves the pod's buckets empty, and they fill.
        eventually("a datagram passes", || {
            udp_exchange(&client, address, PORT, RETRY).unwrap() == Outcome::Allowed
        });
        eventually("an echo request passes", || ping(&client, address, RETRY).unwrap() == Outcome::Allowed);
        let before = [new("bandwidth-egress"), new("bandwidth-ingress")];
        transfer(&other, address, PORT, BYTES, TIMEOUT).unwrap();
        assert_eq!([new("bandwidth-egress"), new("bandwidth-ingress")], before);
    }
    assert_eq!(limit(Bandwidth::default()), Bandwidth::default());
    let limited = || count(&rig, "bandwidth-egress") + count(&rig, "bandwidth-ingress");
    let before = limited();
    transfer(&client, server.addresses()[0], PORT, BYTES, TIMEOUT).unwrap();
    assert_eq!(limited(), before);
    assert_accounted(&rig.counters());
}
