//! Command `palisade-cni install`: the plugin and its configuration in the directories of a container runtime.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;

use super::config::NetworkConfig;

/// Name of the program, which is the type of the plugin in configurations.
pub(super) const PROGRAM: &str = "palisade-cni";
/// File name of the configuration. Runtimes take the first file of the directory.
const CONFLIST: &str = "05-palisade.conflist";
/// Most bytes of a configuration.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Configuration of an installation without one: addresses from the switch's `pod_prefixes`, published ports by the switch.
pub(super) const DEFAULT: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "palisade",
  "plugins": [
    {
      "type": "palisade-cni",
      "ipam": {"type": "host-local"},
      "capabilities": {"bandwidth": true, "portMappings": true}
    }
  ]
}
"#;

/// CNI plugin of the Palisade virtual switch
///
/// A container runtime calls it by its environment. The command line installs it.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version)]
pub(super) enum Command {
    /// Copy this program to the directory of plugins, then its configuration to the directory of configurations
    Install {
        /// Directory of plugins, such as /opt/cni/bin
        #[arg(long, value_name = "DIR")]
        bin_dir: PathBuf,
        /// Directory of configurations, such as /etc/cni/net.d
        #[arg(long, value_name = "DIR")]
        conf_dir: PathBuf,
        /// Configuration, a conflist; one with addresses of the node's own prefixes where absent
        #[arg(long, value_name = "FILE")]
        conf: Option<PathBuf>,
    },
}

/// Installs program and configuration. Each file is replaced as a whole, the configuration last: a runtime that finds it
/// finds the program.
pub(super) fn install(bin_dir: &Path, conf_dir: &Path, conf: Option<&Path>) -> Result<(), String> {
    let text = match conf {
        Some(file) => read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?,
        None => DEFAULT.to_owned(),
    };
    check(&text).map_err(|error| {
        let file = conf.map_or_else(|| "the configuration".to_owned(), |file| file.display().to_string());
        format!("{file}: {error}")
    })?;
    let own = "/proc/self/exe";
    let program = File::open(own).map_err(|error| format!("{own} cannot be read: {error}"))?;
    let name = conf.and_then(Path::file_name).map_or(CONFLIST.into(), PathBuf::from);
    for (directory, name, mode, content) in [
        (bin_dir, Path::new(PROGRAM), 0o755, &mut Box::new(program) as &mut dyn Read),
        (conf_dir, name.as_path(), 0o644, &mut text.as_bytes()),
    ] {
        let path = directory.join(name);
        replace(directory, &path, mode, content)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Checks a conflist: JSON with this plugin among its own, in a configuration that it takes.
fn check(text: &str) -> Result<(), String> {
    let list: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let plugins =
        list.get("plugins").and_then(Value::as_array).ok_or("plugins: is no list: give a conflist")?;
    let is_own = |plugin: &&Value| plugin.get("type").and_then(Value::as_str) == Some(PROGRAM);
    let own = plugins.iter().find(is_own).and_then(Value::as_object);
    let mut own = own.ok_or_else(|| format!("plugins: has none of type {PROGRAM}"))?.clone();
    for key in ["cniVersion", "name"] {
        own.extend(list.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    let config = NetworkConfig::of(own).map_err(|error| error.to_string())?;
    config.for_ipam(None).map(drop).map_err(|error| error.to_string())
}

fn replace(directory: &Path, path: &Path, mode: u32, content: &mut dyn Read) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // Runtimes pass over names that begin with a dot.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let next = directory.join(format!(".{name}.{}", std::process::id()));
    let written = write(&next, mode, content).and_then(|()| fs::rename(&next, path));
    if written.is_err() {
        // The error says why the file is not there.
        let _ = fs::remove_file(&next);
    }
    written
}

fn write(path: &Path, mode: u32, content: &mut dyn Read) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    io::copy(content, &mut file)?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_this_plugin_is_refused() {
        assert_eq!(check(DEFAULT), Ok(()));
        let refused = [
            ("", "not JSON"),
            ("{}", "conflist"),
            (r#"{"plugins": [{"type": "bridge"}]}"#, "none of type"),
            (r#"{"cniVersion": "9.0.0", "name": "n", "plugins": [{"type": "palisade-cni"}]}"#, "9.0.0"),
            (r#"{"cniVersion": "1.0.0", "plugins": [{"type": "palisade-cni"}]}"#, "name"),
            (
                r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "palisade-cni", "mtus": 1}]}"#,
                "mtus",
            ),
        ];
        for (text, says) in refused {
            let error = check(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
