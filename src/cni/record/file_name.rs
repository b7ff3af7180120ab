//! Names of the files of records.

use std::fmt::Write as _;

use crate::cni::environment::Attachment;

/// Name of the file of an attachment. Bytes other than letters, digits and any of - . _ are escaped, and no name begins
/// with a dot.
pub(super) fn file_name(Attachment { container, interface }: &Attachment) -> String {
    let escape = |text: &str| {
        text.bytes().fold(String::new(), |mut escaped, byte| {
            if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
                escaped.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
            escaped
        })
    };
    format!("{}@{}.json", escape(container), escape(interface))
}

/// Attachment whose file has this name; `None` for any other file.
pub(super) fn attachment_of(file_name: &str) -> Option<Attachment> {
    let unescape = |text: &str| {
        let mut bytes = text.bytes();
        let mut plain = Vec::new();
        while let Some(byte) = bytes.next() {
            plain.push(match byte {
                b'%' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            });
        }
        String::from_utf8(plain).ok()
    };
    let (container, interface) = file_name.strip_suffix(".json")?.split_once('@')?;
    let attachment = Attachment { container: unescape(container)?, interface: unescape(interface)? };
    (self::file_name(&attachment) == file_name).then_some(attachment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_escaped_and_lead_back() {
        for (container, interface) in [("c1", "eth0"), ("a.b_c-d", "e@t%h"), ("x", "é"), ("x", "..")] {
            let attachment = Attachment { container: container.to_owned(), interface: interface.to_owned() };
            let name = file_name(&attachment);
            assert!(!name.contains('/') && !name.starts_with('.') && name.len() < 255, "{name}");
            assert_eq!(attachment_of(&name), Some(attachment));
        }
        for other in ["", "x", "x@y", "@.json/", "%zz@eth0.json", "%2@.json", "a%41@eth0.json"] {
            assert_eq!(attachment_of(other), None, "{other}");
        }
    }
}
