//! Tables of policies in audit mode: compiled from all objects, those of the audited policies among them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::policy::objects::Object;
use crate::policy::{Change, Compiler, Options, audited_policies};
use crate::tables::{PolicyRef, RuleTables};
use crate::threads;

/// Most changes that wait for a compilation. More of them lead to one from scratch.
const CHANGES_MAX: usize = 100_000;

/// Audited policies of manifests, and the objects of their compilation.
#[derive(Debug, Clone)]
pub struct Audited {
    policies: Vec<PolicyRef>,
    objects: Vec<Object>,
    options: Options,
}

impl Audited {
    /// Audited policies among `objects`; `None` without any.
    pub(super) fn of<'a>(
        objects: impl Iterator<Item = &'a Object> + Clone,
        options: &Options,
    ) -> Option<Audited> {
        let policies = audited_policies(objects.clone());
        let (objects, options) = (objects.cloned().collect(), options.clone());
        Some(Audited { policies, objects, options }).filter(|audited| !audited.policies.is_empty())
    }

    /// The audited policies.
    pub fn policies(&self) -> &[PolicyRef] {
        &self.policies
    }

    /// Compiles tables in which the audited policies are enforced too. A panic of the compiler is an error.
    pub fn compile(self) -> Result<RuleTables, String> {
        contained(|| Compiler::from_objects(self.objects, self.options).into_tables())
    }
}

/// Compiler of the audit of a directory, with the changes since its last compilation.
#[derive(Debug, Default)]
pub(super) struct AuditCompiler {
    compiler: Option<Box<Compiler>>,
    changes: Vec<Change>,
    /// Failure of the next compilation.
    #[cfg(test)]
    pub(super) before_compile: Option<fn()>,
}

impl AuditCompiler {
    /// Notes changes of objects for the next compilation.
    pub(super) fn note(&mut self, changes: &[Change]) {
        if self.compiler.is_none() {
            return;
        }
        self.changes.extend_from_slice(changes);
        // A directory whose tables are refused again and again costs no more than a compilation from scratch.
        if self.changes.len() > CHANGES_MAX {
            self.clear();
        }
    }

    /// Compiles the changes, or all `objects` where nothing has been compiled. A panic of the compiler is an error, after which
    /// the next compilation is from scratch.
    pub(super) fn compile(
        &mut self,
        objects: impl Iterator<Item = Object>,
        options: Options,
    ) -> Result<RuleTables, String> {
        let before = std::mem::take(self);
        let compiler = contained(|| {
            #[cfg(test)]
            before.before_compile.iter().for_each(|fail| fail());
            match before.compiler {
                Some(mut compiler) => {
                    compiler.apply_all(before.changes);
                    compiler
                }
                None => Box::new(Compiler::from_objects(objects, options)),
            }
        })?;
        Ok(self.compiler.insert(compiler).tables().clone())
    }

    /// Forgets all objects.
    pub(super) fn clear(&mut self) {
        *self = AuditCompiler::default();
    }
}

fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        format!(
            "internal error of the policy compiler: {}. Please report it with the manifests",
            threads::message(&*panic)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse::{Source, parse_sources};

    const PODS: &str = "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nstatus: {podIP: 10.0.0.1}\n---\n";

    fn objects(mode: &str) -> Vec<Object> {
        let policy = format!(
            "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {{name: p, annotations: \
             {{palisade.dev/mode: {mode}}}}}\nspec: {{}}\n"
        );
        let parsed = parse_sources(&[Source::new("test.yaml", format!("{PODS}{policy}"))]).unwrap();
        parsed.objects.into_iter().map(|(object, _)| object).collect()
    }

    #[test]
    fn tables_of_the_audit_are_those_of_the_enforced_policy() {
        let (audit, enforce) = (objects("audit"), objects("enforce"));
        let options = Options::default();
        let audited = Audited::of(audit.iter(), &options).unwrap();
        assert_eq!(audited.policies()[0].to_string(), "NetworkPolicy default/p");
        let enforced = Compiler::from_objects(enforce.clone(), options.clone()).into_tables();
        assert_eq!(audited.compile().unwrap(), enforced);
        assert!(Audited::of(enforce.iter(), &options).is_none());
    }

    #[test]
    fn changes_are_compiled_as_from_scratch() {
        let mut compiler = AuditCompiler::default();
        compiler.note(&[Change::Upsert(objects("audit")[0].clone())]);
        let all = objects("audit");
        let before = compiler.compile(all.iter().take(1).cloned(), Options::default()).unwrap();
        compiler.note(&[Change::Upsert(all[1].clone())]);
        let after = compiler.compile(std::iter::empty(), Options::default()).unwrap();
        assert_ne!(before, after);
        let scratch = Compiler::from_objects(all, Options::default()).into_tables();
        assert_eq!(after.canonical(), scratch.canonical());
    }

    #[test]
    fn a_panic_of_the_compiler_is_contained() {
        let failed = contained::<()>(|| panic!("out of numbers"));
        assert!(failed.unwrap_err().contains("out of numbers. Please report"));
    }
}
