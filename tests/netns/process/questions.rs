//! The questions of `docs/troubleshooting.md`: each of their commands answers, as it is written there.

use std::fs;
use std::process::Command;

use palisade::lab::traffic::{Server, Services};

use crate::support::{INGRESS, PORT, Rig, assert_allowed, assert_denied, isolated, only_from, pods_manifest};

/// Commands of the questions, in their order.
fn commands() -> Vec<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/troubleshooting.md")).unwrap();
    let table = page.split("\n\n").find(|part| part.starts_with("| question |")).expect("the questions");
    let cells =
        table.lines().skip(2).map(|row| row.replace("\\|", "\n").split('|').nth(2).unwrap().to_owned());
    let code = |cell: String| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    cells.flat_map(code).map(|command| command.lines().next().unwrap().trim().to_owned()).collect()
}

#[test]
fn each_question_of_the_troubleshooting_page_is_answered_by_its_command() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server"], 1);
    rig.apply(&only_from("server", "client"));
    let [client, stranger, server] = ["client", "stranger", "server"].map(|name| rig.pod(name));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let address = server.addresses()[0];
    assert_allowed(&client, address);
    assert_denied(&rig.switch, &stranger, address, INGRESS);
    let directory = rig.lab.directory().join("policies");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("all.yaml"), pods_manifest(&rig.lab) + "---\n" + &only_from("server", "client"))
        .unwrap();
    let names = [
        ("NS/NAME", "default/server"),
        ("NS/A", "default/stranger"),
        ("NS/B", "default/server"),
        ("DIR", directory.to_str().unwrap()),
        ("PORT", &server.plan().host_interface),
        ("--port N", "--port 6379"),
        ("-w -", "-w /dev/null"),
    ];
    let (mut asked, mut said) = (0, String::new());
    for command in commands() {
        // The others are of the package manager and systemd, or an annotation.
        let Some(words) = command.strip_prefix("palisade ") else { continue };
        let mut line = names.iter().fold(words.to_owned(), |line, (from, to)| line.replace(from, to));
        if line.starts_with("trace") || line.starts_with("capture") {
            line += " --seconds 1";
        }
        let output = Command::new(env!("CARGO_BIN_EXE_palisade"))
            .args(line.split_whitespace())
            .env("PALISADE_SOCKET", rig.switch.client().socket())
            .output()
            .unwrap();
        let [out, err] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        // Code 1 is an answer as well: a finding, a denial, a difference.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{line}: {}\n{out}{err}", output.status);
        let is_silent = line.starts_with("trace") || line.starts_with("capture");
        assert!(is_silent || !out.is_empty(), "{line} says nothing: {err}");
        said += &out;
        asked += 1;
    }
    assert!(asked >= 18, "{asked} commands");
    for answer in ["isolated for ingress by NetworkPolicy default/to-server", "policy-ingress", " ended"] {
        assert!(said.contains(answer), "nobody says {answer:?}:\n{said}");
    }
}
