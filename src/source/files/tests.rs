use super::*;
use crate::source::load::scratch::Scratch;

#[test]
fn a_directory_gives_its_manifests_in_order_and_nothing_else() {
    let scratch = Scratch::new();
    for name in ["b.yaml", "a/z.json", "a/.hidden.yaml", "c.yml", "notes.txt"] {
        scratch.write(name, "x");
    }
    std::os::unix::fs::symlink("..", scratch.0.join("a/up")).unwrap();
    let sources = load(std::slice::from_ref(&scratch.0), &Excluded::default()).unwrap();
    let names: Vec<&str> = sources
        .iter()
        .map(|source| source.name().strip_prefix(scratch.0.to_str().unwrap()).unwrap())
        .collect();
    assert_eq!(names, ["/a/z.json", "/b.yaml", "/c.yml"]);
}

#[test]
fn excluded_names_and_paths_are_left_out() {
    let scratch = Scratch::new();
    for name in ["a.yaml", "charts/x/values.yaml", "values.yaml", "prod/b.yaml", "prod/charts.yaml"] {
        scratch.write(name, "x");
    }
    let rest = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|pattern| glob::Pattern::new(pattern).unwrap()).collect();
        let sources = load(std::slice::from_ref(&scratch.0), &Excluded::new(patterns))?;
        let root = scratch.0.to_str().unwrap();
        let names = sources.iter().map(|source| source.name().strip_prefix(root).unwrap()[1..].to_owned());
        Ok::<_, LoadError>(names.collect::<Vec<_>>())
    };
    assert_eq!(rest(&["charts", "values.yaml"]).unwrap(), ["a.yaml", "prod/b.yaml", "prod/charts.yaml"]);
    let left = ["a.yaml", "charts/x/values.yaml", "values.yaml"];
    assert_eq!(rest(&["prod/*"]).unwrap(), left);
    assert_eq!(rest(&["**/values.yaml", "prod"]).unwrap(), ["a.yaml"]);
    assert!(rest(&["*"]).unwrap_err().to_string().contains("no *.yaml"));
    // A named file is read all the same.
    let named = [scratch.0.join("values.yaml")];
    assert_eq!(load(&named, &Excluded::new(vec![glob::Pattern::new("*").unwrap()])).unwrap().len(), 1);
}

#[test]
fn a_named_file_is_read_whatever_its_ending() {
    let scratch = Scratch::new();
    let path = scratch.write("policy", "kind: Pod");
    assert_eq!(load(&[path], &Excluded::default()).unwrap()[0].text(), "kind: Pod");
}

#[test]
fn what_cannot_be_read_is_named() {
    let scratch = Scratch::new();
    let text = |path: PathBuf| load(&[path], &Excluded::default()).unwrap_err().to_string();
    assert!(text(scratch.0.clone()).contains("no *.yaml"));
    assert!(text(scratch.0.join("gone.yaml")).contains("gone.yaml: No such file"));
    let path = scratch.write("bad.yaml", "");
    fs::write(&path, b"ab\xff").unwrap();
    assert!(text(path).contains("bad.yaml: byte 2 is not UTF-8"));
}

#[test]
fn files_that_are_too_large_alone_or_together_are_not_read() {
    let scratch = Scratch::new();
    let sparse = |name: &str, bytes: usize| {
        let path = scratch.write(name, "");
        fs::File::options().write(true).open(&path).unwrap().set_len(bytes as u64).unwrap();
        path
    };
    let alone = sparse("a.yaml", SOURCE_BYTES_MAX + 1);
    assert!(
        load(std::slice::from_ref(&alone), &Excluded::default())
            .unwrap_err()
            .to_string()
            .contains("a.yaml: larger than")
    );
    assert!(matches!(read(&alone), Err(LoadError::TooLarge { .. })));
    fs::remove_file(alone).unwrap();
    for name in ["b.yaml", "c.yaml"] {
        sparse(name, SOURCES_BYTES_MAX / 2);
    }
    assert!(list(&scratch.0).errors.is_empty());
    sparse("d.yaml", 1);
    let error = load(std::slice::from_ref(&scratch.0), &Excluded::default()).unwrap_err().to_string();
    assert!(error.contains("d.yaml: more than 268435456 bytes together"), "{error}");
}

#[test]
fn a_fifo_or_a_socket_in_a_directory_is_an_error_and_nobody_waits_for_it() {
    let scratch = Scratch::new();
    scratch.write("a.yaml", "x");
    let fifo = scratch.0.join("b.yaml");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let error = load(std::slice::from_ref(&scratch.0), &Excluded::default()).unwrap_err().to_string();
    assert!(error.contains("b.yaml is a FIFO"), "{error}");
    assert!(read(&fifo).unwrap_err().to_string().contains("is a FIFO"), "it took the name of a file");
    fs::remove_file(&fifo).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&fifo).unwrap();
    let error = load(std::slice::from_ref(&scratch.0), &Excluded::default()).unwrap_err().to_string();
    assert!(error.contains("b.yaml is a socket"), "{error}");
}

#[test]
fn another_file_of_the_same_size_and_time_has_another_stamp() {
    let scratch = Scratch::new();
    let path = scratch.write("a.yaml", "one");
    let before = list(&path).files[&path];
    let other = scratch.write("other", "two");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::File::options().append(true).open(&other).unwrap().set_modified(time).unwrap();
    fs::rename(&other, &path).unwrap();
    let after = list(&path).files[&path];
    assert_eq!((before.bytes, before.modified), (after.bytes, after.modified));
    assert_ne!(before, after);
}
