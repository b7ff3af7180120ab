//! Objects of the files of a directory, by name. A changed file yields the objects that differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::policy::objects::Object;
use crate::policy::parse::{Diagnostic, Location};
use crate::policy::{Change, ObjectName, audited_policies};
use crate::tables::PolicyRef;

/// Objects by name. Of several with one name the one in the last file counts.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    files: BTreeMap<PathBuf, Vec<ObjectName>>,
    /// Definitions of each object in the order of their files; never empty.
    objects: BTreeMap<ObjectName, Vec<Definition>>,
    policies: usize,
    /// Policies in audit mode among them.
    audited: usize,
}

/// Definition of an object in a file.
#[derive(Debug, Clone)]
struct Definition {
    file: Arc<Path>,
    line: usize,
    object: Arc<Object>,
}

/// Changes of objects.
#[derive(Debug, Default)]
pub(super) struct Update {
    /// Changed objects, one change each.
    pub(super) changes: Vec<Change>,
    /// Warnings about objects that several files define.
    pub(super) warnings: Vec<String>,
}

/// Objects of a file; empty for a removed file.
pub(super) type Content = Vec<(Object, Location)>;

impl Manifests {
    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Tests whether policy depends on one of the objects.
    pub(super) fn has_policy_objects(&self) -> bool {
        // Services and their slices are the last kinds in the order of names.
        self.objects.keys().next().is_some_and(|name| {
            !matches!(name, ObjectName::Service { .. } | ObjectName::EndpointSlice { .. })
        })
    }

    /// Number of policies.
    pub(super) fn policies(&self) -> usize {
        self.policies
    }

    /// Policies in audit mode.
    pub(super) fn audited(&self) -> Vec<PolicyRef> {
        if self.audited == 0 {
            return Vec::new();
        }
        audited_policies(self.objects.values().filter_map(|of_name| Some(&*of_name.last()?.object)))
    }

    /// Tests whether a file defines objects.
    pub(super) fn holds(&self, file: &Path) -> bool {
        self.files.get(file).is_some_and(|names| !names.is_empty())
    }

    /// Objects that count.
    pub(super) fn objects(&self) -> impl Iterator<Item = Object> {
        self.objects.values().filter_map(|of_name| of_name.last()).map(|last| Object::clone(&last.object))
    }

    /// Replaces the content of files.
    pub(super) fn update(&mut self, files: impl IntoIterator<Item = (PathBuf, Content)>) -> Update {
        let mut before: BTreeMap<ObjectName, Option<Arc<Object>>> = BTreeMap::new();
        for (file, content) in files {
            let names: Vec<ObjectName> = content.iter().map(|(object, _)| ObjectName::of(object)).collect();
            let earlier = self.files.remove(&file).unwrap_or_default();
            for name in earlier.iter().chain(&names) {
                if !before.contains_key(name) {
                    before.insert(name.clone(), self.counting(name).cloned());
                }
            }
            let file: Arc<Path> = file.into();
            earlier.iter().for_each(|name| self.remove(name, &file));
            for (object, location) in content {
                let line = location.line();
                self.insert(Definition { file: file.clone(), line, object: Arc::new(object) });
            }
            if !names.is_empty() {
                self.files.insert(file.to_path_buf(), names);
            }
        }
        self.differences(before)
    }

    /// Compares objects with the ones that counted before.
    fn differences(&mut self, before: BTreeMap<ObjectName, Option<Arc<Object>>>) -> Update {
        let mut update = Update::default();
        for (name, before) in before {
            if let Some([.., earlier, last]) = self.objects.get(&name).map(Vec::as_slice) {
                update.warnings.push(replaces(&name, earlier, last));
            }
            let after = self.counting(&name).cloned();
            if before == after {
                continue;
            }
            let is_policy =
                matches!(name, ObjectName::NetworkPolicy { .. } | ObjectName::ClusterNetworkPolicy { .. });
            let count = |object: Option<&Arc<Object>>| usize::from(is_policy && object.is_some());
            self.policies = self.policies + count(after.as_ref()) - count(before.as_ref());
            let count =
                |object: Option<&Arc<Object>>| usize::from(object.is_some_and(|object| object.is_audited()));
            self.audited = self.audited + count(after.as_ref()) - count(before.as_ref());
            update.changes.push(match after {
                Some(object) => Change::Upsert(Object::clone(&object)),
                None => Change::Remove(name),
            });
        }
        update
    }

    fn counting(&self, name: &ObjectName) -> Option<&Arc<Object>> {
        Some(&self.objects.get(name)?.last()?.object)
    }

    fn remove(&mut self, name: &ObjectName, file: &Path) {
        let Some(definitions) = self.objects.get_mut(name) else { return };
        definitions.retain(|definition| &*definition.file != file);
        if definitions.is_empty() {
            self.objects.remove(name);
        }
    }

    fn insert(&mut self, definition: Definition) {
        let definitions = self.objects.entry(ObjectName::of(&definition.object)).or_default();
        let at = definitions.partition_point(|other| other.file <= definition.file);
        definitions.insert(at, definition);
    }
}

/// Warning in the form of a [`Diagnostic`].
fn replaces(name: &ObjectName, earlier: &Definition, last: &Definition) -> String {
    let name = match name {
        ObjectName::Namespace(name)
        | ObjectName::Node(name)
        | ObjectName::ClusterNetworkPolicy { name, .. } => name.clone(),
        ObjectName::NetworkPolicy { namespace, name }
        | ObjectName::Service { namespace, name }
        | ObjectName::EndpointSlice { namespace, name } => format!("{namespace}/{name}"),
        ObjectName::Pod(name) => name.to_string(),
    };
    format!(
        "{}:{}: warning: {name} metadata.name: replaces the object with the same name at {}:{} (rename one of them if \
         both are meant)",
        last.file.display(),
        last.line,
        earlier.file.display(),
        earlier.line
    )
}

/// Warnings, one per line.
pub(super) fn lines(warnings: &[Diagnostic]) -> impl Iterator<Item = String> {
    warnings.iter().map(Diagnostic::to_string)
}
