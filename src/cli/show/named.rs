//! One thing of a list, by its name.

use crate::cli::CliError;
use crate::nearest::{hint, nearest};

/// Leaves what has the wanted name, or everything without one. Fails for a name that nothing has; `things` is the word of the
/// command that lists all.
pub(super) fn named<T>(
    mut all: Vec<T>,
    wanted: Option<&str>,
    things: &str,
    name: impl Fn(&T) -> String,
) -> Result<Vec<T>, CliError> {
    let Some(wanted) = wanted else { return Ok(all) };
    if !all.iter().any(|found| name(found) == wanted) {
        let hint = hint(nearest(wanted, all.iter().map(&name)).as_ref());
        return Err(CliError::Message(format!(
            "none of the {things} is {wanted}{hint}: `palisade show {things}` lists them"
        )));
    }
    all.retain(|found| name(found) == wanted);
    Ok(all)
}
