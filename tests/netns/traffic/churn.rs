//! Random changes beside a flood: pods come and go, and policies change, while a pod sends hostile frames.

use std::net::IpAddr;
use std::process::Command;

use palisade::dataplane::Gateway;
use palisade::lab::traffic::{Server, Services};
use palisade::lab::{GATEWAY_V4, Pod};
use palisade::net::tcp::Flags;
use palisade::pktgen::Kind;

use super::connection_flood::{Flood, beside_a_flood, deaf};
use crate::random::{Random, histories};
use crate::support::closed::assert_closed;
use crate::support::connection::Connection;
use crate::support::{
    INGRESS, Rig, TIMEOUT, assert_accounted, assert_allowed, assert_denied, assert_pings, isolated, only_from,
};

/// Fresh seeds.
const HISTORIES: u64 = 1;
/// Changes of a history.
const CHANGES: usize = 8;
const CLIENTS: [&str; 2] = ["client", "other"];

/// Frames that a pod may send without end: its own, those with the address of another pod, and some with no sense.
fn floods(flooder: &Pod, other: &Pod) -> [Flood; 5] {
    let [own, of_another]: [IpAddr; 2] = [flooder.v4().into(), other.v4().into()];
    let every_bit = Kind::Tcp(0xff);
    [
        Flood { kind: Kind::Tcp(Flags::SYN), src: own },
        Flood { kind: Kind::Tcp(Flags::SYN), src: of_another },
        Flood { kind: every_bit, src: own },
        Flood { kind: Kind::Udp, src: own },
        Flood { kind: Kind::SctpInit, src: own },
    ]
}

/// Attachment of the guest, and the one pod that policy lets reach the server, or any.
#[derive(Debug)]
struct State {
    is_attached: bool,
    allowed: Option<&'static str>,
}

impl State {
    fn change(&mut self, rig: &Rig, random: &mut Random) {
        let guest = rig.pod("guest");
        if random.one_in(2) {
            self.is_attached = !self.is_attached;
            if self.is_attached {
                rig.switch.attach(&guest).unwrap();
            } else {
                rig.switch.detach(&guest).unwrap();
            }
        } else {
            self.allowed = random.pick(&[None, Some("client"), Some("other")]);
            rig.apply(&self.allowed.map(|client| only_from("db", client)).unwrap_or_default());
        }
    }

    /// Asserts that new connections are those that the state allows.
    fn check(&self, rig: &Rig) {
        let [db, guest] = ["db", "guest"].map(|name| rig.pod(name));
        for client in CLIENTS {
            if self.allowed.is_none_or(|allowed| allowed == client) {
                assert_allowed(&rig.pod(client), db.v4().into());
            } else {
                assert_denied(&rig.switch, &rig.pod(client), db.v4().into(), INGRESS);
            }
        }
        let client = rig.pod("client").v4().into();
        if self.is_attached {
            assert_pings(&guest, client);
        } else {
            assert_closed(&guest, client);
        }
    }
}

#[test]
fn random_changes_beside_a_flood_hold_at_once_and_disturb_no_other_connection() {
    let Some(_isolated) = isolated() else { return };
    for seed in histories("changes beside a flood", 0..0, HISTORIES) {
        let mut random = Random(seed.number);
        let config = "[conntrack]\nflows = 4096\n";
        let rig =
            deaf(Rig::with(&["db", "client", "other", "flooder", "guest", "caller", "callee"], 1, config));
        let [db, other, flooder] = ["db", "other", "flooder"].map(|name| rig.pod(name));
        // The guest's kernel sends at once, also while nobody answers for its gateway.
        let gateway =
            format!("neigh replace {GATEWAY_V4} lladdr {} dev eth0 nud permanent", Gateway::default().mac);
        assert!(rig.pod("guest").status(Command::new("ip").args(gateway.split(' '))).unwrap().success());
        let mut talk = Connection::open(&rig.pod("caller"), &rig.pod("callee"));
        let _server = Server::start(&db, &[crate::support::PORT], Services::Tcp).unwrap();
        let flood = random.pick(&floods(&flooder, &other));
        let mut state = State { is_attached: true, allowed: None };
        let mut changes = 0;
        let sent = beside_a_flood(&rig, flood, [&flooder, &db], || {
            if changes < CHANGES {
                state.change(&rig, &mut random);
                state.check(&rig);
                changes += 1;
            }
            assert!(talk.goes_on(TIMEOUT), "the established connection lives after {state:?}");
            changes == CHANGES
        });
        eprintln!("{changes} changes beside {sent} frames of {flood:?}");
        assert_accounted(&rig.counters());
    }
}
