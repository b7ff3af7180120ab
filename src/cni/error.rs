//! Errors of the plugin, as the CNI specification has them: a code, a sentence and details.

use std::fmt;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::control::ClientError;
use crate::netlink::NetlinkError;
use crate::printable;

/// Most characters of a message, which may quote input.
const MESSAGE_CHARS_MAX: usize = 2000;

/// Code of an error (CNI specification 1.1, section 5, "Error").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// "Incompatible CNI version".
    pub const INCOMPATIBLE_VERSION: Code = Code(1);
    /// "Unsupported field in network configuration".
    pub const UNSUPPORTED_FIELD: Code = Code(2);
    /// "Container unknown or does not exist".
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// "Invalid necessary environment variables".
    pub const INVALID_ENVIRONMENT: Code = Code(4);
    /// "I/O failure".
    pub const IO: Code = Code(5);
    /// "Failed to decode content".
    pub const DECODE: Code = Code(6);
    /// "Invalid network config".
    pub const INVALID_CONFIG: Code = Code(7);
    /// "Try again later".
    pub const TRY_AGAIN: Code = Code(11);
    /// "The plugin is not available (i.e. cannot service ADD requests)", of STATUS.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// "… and existing containers in the network may have limited connectivity", of STATUS.
    pub const LIMITED_CONNECTIVITY: Code = Code(51);
    /// A defect of the plugin itself.
    pub const DEFECT: Code = Code(101);
    /// An attachment that differs from its result, of CHECK. Codes of 100 and more belong to the plugin.
    pub const DIFFERS: Code = Code(100);
}

/// Error of the plugin. Its message tells what failed and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniError {
    code: Code,
    message: String,
}

impl CniError {
    /// Error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> CniError {
        CniError { code, message: message.into() }
    }

    /// Error of the kernel or a file, with the action that failed, in words that complete "cannot …".
    pub fn io(action: &str, source: &io::Error) -> CniError {
        CniError::new(Code::IO, format!("cannot {action}: {source}"))
    }

    /// Code of the error.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The same error with another code.
    #[must_use]
    pub fn with_code(self, code: Code) -> CniError {
        CniError { code, ..self }
    }

    /// The same error with a further sentence.
    #[must_use]
    pub fn and(self, further: &str) -> CniError {
        CniError { message: format!("{}; {further}", self.message), ..self }
    }

    /// The error as JSON for standard output.
    pub fn to_json(&self, version: &str) -> Value {
        let message = printable::cut(&self.message, MESSAGE_CHARS_MAX);
        json!({"cniVersion": version, "code": self.code.0, "msg": printable::line(&message)})
    }
}

/// Writes a note for the operator to standard error, which runtimes log. One that is closed has no effect.
pub(super) fn note(text: &dyn fmt::Display) {
    let text = text.to_string();
    let text = printable::cut(&text, MESSAGE_CHARS_MAX);
    let _ = writeln!(io::stderr().lock(), "palisade-cni: {}", printable::line(&text));
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable::line(&self.message))
    }
}

impl std::error::Error for CniError {}

impl From<NetlinkError> for CniError {
    fn from(error: NetlinkError) -> CniError {
        CniError::new(Code::IO, error.to_string())
    }
}

impl From<ClientError> for CniError {
    /// A switch that is not there or is busy may answer later.
    fn from(error: ClientError) -> CniError {
        let code = match &error {
            ClientError::Refused { status: 422, .. } => Code::INVALID_CONFIG,
            ClientError::NotRunning { .. } | ClientError::Broken { .. } | ClientError::Refused { .. } => {
                Code::TRY_AGAIN
            }
            ClientError::Forbidden { .. } | ClientError::Unreadable { .. } => Code::IO,
        };
        CniError::new(code, error.to_string())
    }
}
