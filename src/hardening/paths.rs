//! Files that a switch reads and writes while it runs.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::config::{Config, SourceKind};
use crate::dataplane::{Backend, FlowMemory};
use crate::xdp::is_on_bpf_file_system;

/// Most entries of the policy directory whose links are followed.
const ENTRIES_MAX: usize = 10_000;

/// Files of name resolution, and certificates of authorities. /etc as a whole has secrets of others.
const NETWORK_FILES: [&str; 7] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// Programs and their libraries.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache"];
/// Settings of interfaces.
const NETWORK_SETTINGS: [&str; 2] = ["/proc/sys/net/ipv4/conf", "/proc/sys/net/ipv6/conf"];

/// Files and directories by use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Paths {
    /// Files and directories that the configuration names, for reading.
    pub(super) named: Vec<PathBuf>,
    /// Directories below which files are read.
    pub(super) read: Vec<PathBuf>,
    /// Directories below which files are made, changed and removed.
    pub(super) written: Vec<PathBuf>,
    /// Directories of settings that are changed.
    pub(super) settings: Vec<PathBuf>,
    /// Directories of programs that are started, with their libraries.
    pub(super) programs: Vec<PathBuf>,
}

impl Paths {
    /// Places of a configuration.
    ///
    /// A file may be replaced by another of its name, and a directory too, so that each is read below its parent. A link
    /// is read where it leads at the start.
    pub(super) fn of(config: &Config, config_file: Option<&Path>) -> Paths {
        let mut paths = Paths::default();
        let named = [config_file, config.policy.directory.as_deref(), config.http.token_file.as_deref()];
        for path in named.into_iter().flatten() {
            paths.name(path);
        }
        if config.policy.source == SourceKind::Kubernetes {
            let kubeconfig = config.policy.kubeconfig.clone();
            let from_environment = env::var_os("KUBECONFIG").map(PathBuf::from);
            let found =
                kubeconfig.or(from_environment).or(env::home_dir().map(|home| home.join(".kube/config")));
            let account = Path::new("/var/run/secrets/kubernetes.io/serviceaccount/token");
            let files = found.as_deref().into_iter().chain([account]).filter(|path| path.exists());
            files.for_each(|path| paths.name(path));
            paths.read.extend(NETWORK_FILES.iter().map(PathBuf::from).filter(|path| path.exists()));
        }
        let manifests = config.policy.directory.as_deref().and_then(|path| fs::read_dir(path).ok());
        for entry in manifests.into_iter().flatten().flatten().take(ENTRIES_MAX) {
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                paths.name(&entry.path());
            }
        }
        paths.read.extend(["/proc", "/sys", "/run"].map(PathBuf::from));
        paths.read.extend(config.hardening.readable.iter().cloned());
        let namespaces = config.ports.iter().filter_map(|port| port.namespace.as_deref());
        let absolute = namespaces.map(Path::new).filter(|path| path.is_absolute());
        paths.read.extend(absolute.map(|path| base(path).to_owned()));

        let control = &config.control;
        let sockets = [Some(&control.socket), control.read_only_socket.as_ref()];
        paths.written.extend(sockets.into_iter().flatten().map(|socket| base(socket).to_owned()));
        if let FlowMemory::Directory { path, fallback } = config.flow_memory() {
            paths.written.extend([Some(path), fallback].iter().flatten().map(|path| base(path).to_owned()));
        }
        paths.written.extend(config.cni.directory.clone().filter(|path| !path.as_os_str().is_empty()));
        // The last pin that goes takes its directory with it.
        let pins = existing(base(&config.xdp.pin_directory));
        paths.written.extend(is_on_bpf_file_system(&pins).then_some(pins));
        if config.backend == Backend::Nftables {
            let search = env::var_os("PATH").unwrap_or_default();
            let programs = PROGRAMS.map(PathBuf::from).into_iter().chain(env::split_paths(&search));
            paths.programs = programs.filter(|path| path.is_absolute() && path.exists()).collect();
            let settings = NETWORK_SETTINGS.map(PathBuf::from).into_iter();
            paths.settings = settings.filter(|path| path.exists()).collect();
        }
        for list in [&mut paths.named, &mut paths.read, &mut paths.written, &mut paths.programs] {
            list.sort();
            list.dedup();
        }
        paths
    }

    fn name(&mut self, path: &Path) {
        self.named.push(path.to_owned());
        self.read.push(base(path).to_owned());
        if let Ok(target) = fs::canonicalize(path) {
            self.read.push(base(&target).to_owned());
        }
    }
}

/// Directory of a path: its parent, unless that is the root, which has everything.
fn base(path: &Path) -> &Path {
    match path.parent() {
        None => path,
        Some(parent) if parent == Path::new("/") => path,
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    }
}

/// Nearest ancestor that exists.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_below_its_parent_but_never_below_the_root() {
        assert_eq!(base(Path::new("/etc/palisade/policies")), Path::new("/etc/palisade"));
        assert_eq!(base(Path::new("/policies")), Path::new("/policies"));
        assert_eq!(base(Path::new("/")), Path::new("/"));
        assert_eq!(base(Path::new("palisade.toml")), Path::new("."));
    }

    #[test]
    fn places_are_those_of_the_configuration() {
        let text = "[control]\nsocket = \"/run/a/x.sock\"\nread_only_socket = \"/run/b/y.sock\"\n\
                    [conntrack]\ndirectory = \"\"\n[policy]\ndirectory = \"/srv/policies\"\n\
                    [hardening]\nreadable = [\"/mnt/git\"]\n";
        let config = Config::parse(text, Path::new("palisade.toml")).unwrap();
        let paths = Paths::of(&config, Some(Path::new("/etc/palisade/palisade.toml")));
        assert_eq!(paths.named, ["/etc/palisade/palisade.toml", "/srv/policies"].map(PathBuf::from));
        let read = ["/etc/palisade", "/mnt/git", "/proc", "/run", "/srv", "/sys"].map(PathBuf::from);
        assert_eq!(paths.read, read);
        assert!(paths.written.starts_with(&["/run/a", "/run/b"].map(PathBuf::from)), "{paths:?}");
        assert!(!paths.written.contains(&PathBuf::from("/dev/shm")));
    }
}
