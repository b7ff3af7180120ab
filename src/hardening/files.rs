//! Restriction of files by Landlock (Documentation/userspace-api/landlock.rst of Linux).

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};

use super::paths::Paths;

/// Newest interface of the kernel that the switch asks for: it has rights of devices.
const NEWEST: ABI = ABI::V5;
/// Directory of the driver of tap devices.
const TUN: &str = "/dev/net";

/// Restricts this thread to the places. Returns them in words; `None` if the kernel has no Landlock.
pub(super) fn restrict(paths: &Paths) -> Result<Option<String>, RulesetError> {
    let reads: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let writes = reads
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSock
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(&paths.read, reads))?
        .add_rules(path_beneath_rules(&paths.written, writes))?
        .add_rules(path_beneath_rules([TUN], devices))?
        .add_rules(path_beneath_rules(&paths.settings, reads | AccessFs::WriteFile | AccessFs::Truncate))?
        .add_rules(path_beneath_rules(&paths.programs, AccessFs::from_read(NEWEST)))?
        .restrict_self()?;
    let in_part = match status.ruleset {
        RulesetStatus::FullyEnforced => "",
        RulesetStatus::PartiallyEnforced => "; this kernel cannot restrict all uses",
        RulesetStatus::NotEnforced => return Ok(None),
    };
    Ok(Some(format!("read below {}; written below {}{in_part}", list(&paths.read), list(&paths.written))))
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_restricted_thread_reads_and_writes_its_places_only() {
        let scratch = std::env::temp_dir().join(format!("palisade-files-{}", std::process::id()));
        let [read, written, other] = ["read", "written", "other"].map(|name| scratch.join(name));
        for directory in [&read, &written, &other] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("file"), "text").unwrap();
        }
        let paths = Paths {
            named: vec![],
            read: vec![read.clone(), scratch.join("absent")],
            written: vec![written.clone()],
            ..Paths::default()
        };
        let thread = std::thread::spawn(move || {
            let Some(text) = restrict(&paths).unwrap() else {
                eprintln!("skipped: this kernel has no Landlock");
                return;
            };
            assert!(text.contains("read below") && text.contains("written below"), "{text}");
            let denied =
                |result: std::io::Result<()>| result.unwrap_err().kind() == ErrorKind::PermissionDenied;
            assert!(denied(fs::read(other.join("file")).map(drop)));
            assert!(denied(fs::write(read.join("file"), "")));
            assert!(denied(fs::remove_file(other.join("file"))));
            assert_eq!(fs::read_to_string(read.join("file")).unwrap(), "text");
            // A file is replaced, and a directory is made and removed, as the flow table's.
            fs::write(written.join("next"), "next").unwrap();
            fs::rename(written.join("next"), written.join("file")).unwrap();
            fs::create_dir(written.join("directory")).unwrap();
            fs::remove_dir(written.join("directory")).unwrap();
        });
        thread.join().unwrap();
        fs::remove_dir_all(&scratch).unwrap();
    }
}
