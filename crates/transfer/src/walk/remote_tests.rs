use super::*;

fn mode(mode: u32) -> Attributes {
    Attributes {
        mode: Some(mode),
        ..Attributes::default()
    }
}

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

fn real(path: &[u8]) -> Vec<u8> {
    match path {
        b"r/sub/up" => b"/home/r".to_vec(),
        b"r/side" => b"/elsewhere".to_vec(),
        other => panic!("{}", Name(other.to_vec())),
    }
}

fn entries(path: &[u8]) -> Vec<(Vec<u8>, Attributes)> {
    let list: &[(&str, u32)] = match path {
        b"r" => &[
            ("f", FILE),
            ("sub", DIR),
            ("side", LINK),
            ("gone", LINK),
            ("fifo", 0o010_644),
        ],
        b"r/sub" => &[("up", LINK), ("g", LINK)],
        b"r/side" => &[("h", FILE)],
        other => panic!("{}", Name(other.to_vec())),
    };
    list.iter()
        .map(|(n, m)| (n.as_bytes().to_vec(), mode(*m)))
        .collect()
}

fn answers(kind: &JobKind) -> Vec<Answer> {
    match kind {
        JobKind::List { path } => vec![Answer::Entries(entries(&path.0)), Answer::Done],
        JobKind::RealPath { path } => vec![Answer::Path(real(&path.0)), Answer::Done],
        JobKind::Stat { path, .. } => match &path.0[..] {
            b"r/sub/g" => vec![Answer::Attributes(mode(FILE)), Answer::Done],
            b"r/gone" => vec![Answer::Failed("no such file".to_owned())],
            _ => vec![Answer::Attributes(mode(DIR)), Answer::Done],
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tree_with_links_and_a_loop_is_walked_once() {
    let real = Some(b"/home/r".to_vec());
    let mut walk = RemoteWalk::new(b"r".to_vec(), real, mode(DIR), true, None);
    let mut seen = Vec::new();
    let mut open = BTreeSet::new();
    while !walk.is_over() {
        let mut requests = Vec::new();
        while let Some(request) = walk.poll_request() {
            requests.push(request);
        }
        for request in requests.into_iter().rev() {
            for answer in answers(&request.kind) {
                walk.handle(request.tag, answer);
            }
        }
        while let Some(found) = walk.poll_found() {
            seen.push(match found {
                Found::Directory { id, at } => {
                    open.insert(id);
                    format!("d {}", Name(at.path))
                }
                Found::File(at) => {
                    assert!(open.contains(&at.parent.expect("not the root")));
                    format!("f {}", Name(at.path))
                }
                Found::Symlink(at) => format!("l {}", Name(at.path)),
                Found::Listed(id) => {
                    assert!(open.remove(&id));
                    continue;
                }
                Found::Problem { path, what } => format!("! {} {what}", Name(path)),
            });
        }
    }
    seen.sort();
    assert!(open.is_empty());
    assert_eq!(
        seen,
        [
            "! r/fifo not a regular file",
            "! r/gone no such file",
            "! r/sub/up a loop of symlinks: this is r again",
            "d r",
            "d r/side",
            "d r/sub",
            "f r/f",
            "f r/side/h",
            "f r/sub/g",
        ]
    );
}
