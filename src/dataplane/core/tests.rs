use std::cell::RefCell;

use super::*;
use crate::dataplane::ConntrackSettings;

#[test]
fn a_wait_reports_the_late_workers_and_no_others() {
    let conntrack = ConntrackSettings { flows_max: 1024, ..Default::default() };
    let settings = Settings { cores: vec![0, 0, 0], huge_pages: false, conntrack, ..Default::default() };
    let core = Core::new(&settings, Instant::now()).unwrap();
    let named = RefCell::new(vec![]);
    core.publish(&mut core.state(), Some(DesiredState::default()), &|core, generation| {
        core.shared.snapshot.register(WorkerId(1));
        let on_late = |worker| {
            named.borrow_mut().push(worker);
            core.shared.snapshot.register(worker);
        };
        assert!(core.wait_for(generation, Duration::from_mins(1), on_late));
    });
    assert_eq!(named.into_inner(), [WorkerId(0), WorkerId(2)]);
}
