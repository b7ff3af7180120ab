use std::cell::RefCell;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::*;
use crate::dataplane::{ConntrackSettings, SHARED_MEMORY};

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

#[test]
fn the_documents_give_the_memory_of_flows_as_it_is() {
    let bytes = |flows_max| flow_memory_bytes(&ConntrackSettings { flows_max, ..Default::default() });
    let flows = ConntrackSettings::default().flows_max;
    let (each, megabytes) = (bytes(1 << 24) >> 24, bytes(flows) as f64 / 1e6);
    let config = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml"));
    let config = config.replace("\n# ", " ");
    assert!(
        config.contains(&format!("{flows} flows take {megabytes:.0} MB ({each} bytes each")),
        "{each} {megabytes}"
    );
    let operations = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
    let operations = operations.replace("\n  ", " ");
    assert!(operations.contains(&format!(": {megabytes:.0} MB for 262,144 flows.")));
    assert!(operations.contains("A flow takes 161 bytes in the one and 144 in the other"));
    assert_eq!(each, 161 + 144);
}

/// A private directory of this process (0500) that is not in memory, so that the fallback is used.
const NOT_IN_MEMORY: &str = "/proc/self/fd";
const NOBODY: u32 = 65534;

/// Name in shared memory, and a name beside it for the target of a link. Drop removes both.
struct Fallback([PathBuf; 2]);

impl Fallback {
    fn new(case: &str) -> Fallback {
        let name = format!("palisade-fallback-{}-{case}", std::process::id());
        Fallback(["", "-target"].map(|end| Path::new(SHARED_MEMORY).join(format!("{name}{end}"))))
    }

    fn start(&self) -> Result<Core, StartError> {
        let memory = FlowMemory::Directory { path: NOT_IN_MEMORY.into(), fallback: Some(self.0[0].clone()) };
        let conntrack = ConntrackSettings { flows_max: 1024, memory, ..Default::default() };
        Core::new(&Settings { huge_pages: false, conntrack, ..Default::default() }, Instant::now())
    }
}

impl Drop for Fallback {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Gives a file to another user, where this process may.
fn give_away(path: &Path) {
    let _ = chown(path, Some(NOBODY), Some(NOBODY));
}

#[test]
fn a_free_fallback_name_in_shared_memory_holds_the_flow_table_and_a_locked_one_stops_the_start() {
    let fallback = Fallback::new("free");
    let core = fallback.start().unwrap();
    assert_eq!(core.flow_table().directory.as_ref(), Some(&fallback.0[0]));
    let error = fallback.start().err().unwrap().to_string();
    assert!(error.contains("another process has the flow table"), "{error}");
}

#[test]
fn an_object_of_another_user_at_the_fallback_name_does_not_keep_the_switch_from_starting() {
    type Make = fn(&Path, &Path);
    let cases: [(&str, Make); 5] = [
        ("file", |name, _| {
            fs::write(name, "theirs").unwrap();
            give_away(name);
        }),
        ("directory", |name, _| {
            fs::create_dir(name).unwrap();
            fs::set_permissions(name, Permissions::from_mode(0o777)).unwrap();
            give_away(name);
        }),
        ("dangling-link", |name, target| symlink(target, name).unwrap()),
        ("link-to-file", |name, target| {
            fs::write(target, "theirs").unwrap();
            symlink(target, name).unwrap();
        }),
        ("link-to-directory", |name, target| {
            fs::create_dir(target).unwrap();
            fs::set_permissions(target, Permissions::from_mode(0o700)).unwrap();
            symlink(target, name).unwrap();
        }),
    ];
    for (case, make) in cases {
        let fallback = Fallback::new(case);
        let [name, target] = &fallback.0;
        make(name, target);
        // Everybody who can open a directory can lock it.
        let is_directory = fs::symlink_metadata(name).unwrap().is_dir();
        let lock = is_directory.then(|| File::open(name).unwrap());
        lock.iter().for_each(|directory| directory.try_lock().unwrap());
        let found = |path: &Path| {
            let about = fs::symlink_metadata(path).ok()?;
            let inside = fs::read(path).ok().or_else(|| Some(vec![fs::read_dir(path).ok()?.count() as u8]));
            Some((about.ino(), about.mode(), about.uid(), inside))
        };
        let before = [name, target].map(|path| found(path));
        let core = fallback.start().unwrap_or_else(|error| panic!("{case}: {error}"));
        let report = core.flow_table();
        assert_eq!(report.directory, None, "{case}");
        let [note] = report.notes.as_slice() else { panic!("{case}: {:?}", report.notes) };
        assert!(note.contains(name.to_str().unwrap()), "{case}: {note}");
        assert_eq!([name, target].map(|path| found(path)), before, "{case} was changed");
    }
}
