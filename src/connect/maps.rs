//! Maps of the sockets' programs: `services` and `backends` of `connect.bpf.c`.

use std::net::IpAddr;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, Object};

use super::lists::{Change, End, List};

/// The maps, and the lists that sockets may still read.
pub(super) struct Maps {
    services: MapHandle,
    backends: MapHandle,
    /// Lists that lost their addresses in the last change.
    unused: Vec<List>,
}

impl Maps {
    pub(super) fn of(object: &Object) -> libbpf_rs::Result<Maps> {
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name);
            let map = map.ok_or_else(|| std::io::Error::other(format!("the object lacks the map {name}")))?;
            MapHandle::try_from(&map)
        };
        Ok(Maps { services: map("services")?, backends: map("backends")?, unused: Vec::new() })
    }

    /// Sets lists, which take over their addresses, then removes addresses. Lists that have none stay until the next change:
    /// a socket call that has read their number finds a backend. A change that has failed can be applied again.
    pub(super) fn apply(&mut self, change: &Change) -> libbpf_rs::Result<()> {
        while let Some(list) = self.unused.last() {
            for index in 0..list.backends.len() {
                removed(self.backends.delete(&place(list.version, index)))?;
            }
            self.unused.pop();
        }
        for list in &change.set {
            for (index, backend) in list.backends.iter().enumerate() {
                self.backends.update(&place(list.version, index), &end(backend), MapFlags::ANY)?;
            }
            let numbers = [list.version, list.backends.len() as u32, u32::from(list.is_sticky)];
            let service: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            for at in &list.ends {
                self.services.update(&end(at), &service, MapFlags::ANY)?;
            }
        }
        for at in &change.removed.0 {
            removed(self.services.delete(&end(at)))?;
        }
        self.unused.clone_from(&change.removed.1);
        Ok(())
    }
}

fn removed(result: libbpf_rs::Result<()>) -> libbpf_rs::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// `struct place`.
fn place(version: u32, index: usize) -> Vec<u8> {
    [version, index as u32].iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// `struct end`.
fn end((protocol, at): &End) -> Vec<u8> {
    let mut bytes = match at.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    bytes.extend(at.port().to_be_bytes());
    bytes.extend([protocol.0, 0]);
    bytes
}
