use super::*;

const HEAD: Head = Head { id: [7; 16], begun: Timestamp(1_800_000_000_000_000), layout: 2, partitions: 8 };

fn frames() -> Vec<Frame> {
    let text = |t: &'static str| Bytes::from_static(t.as_bytes());
    vec![
        Frame::Record { run: RunId::new("r-1").unwrap(), record: text("a record") },
        Frame::Field { field: Field::new("i"), value: text("{}") },
        Frame::Field { field: Field::new("o"), value: Bytes::from(vec![9; 70_000]) },
        Frame::Record { run: RunId::new("r-2").unwrap(), record: text("another") },
        Frame::Workflow(StoredWorkflow {
            name: WorkflowName::new("w").unwrap(),
            version: 3,
            document: text("{\"name\":\"w\"}"),
            created_at: Timestamp(-5),
        }),
        Frame::End(End { records: 2, fields: 2, workflows: 1, lease: LeaseTime(99) }),
    ]
}

fn written(frames: &[Frame]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &HEAD).unwrap();
    for frame in frames {
        writer.write(frame).unwrap();
    }
    assert_eq!(writer.bytes, writer.out.len() as u64);
    writer.done().unwrap()
}

fn said(file: &[u8]) -> String {
    inspect(file).unwrap_err().to_string()
}

#[test]
fn a_file_reads_as_it_was_written() {
    let file = written(&frames());
    let (mut reader, head) = Reader::begin(&file[..]).unwrap();
    assert_eq!(head, HEAD);
    for frame in frames() {
        assert_eq!(reader.next().unwrap(), frame);
    }
    let summary = inspect(&file[..]).unwrap();
    assert_eq!((summary.id, summary.partitions), (HEAD.id, 8));
    assert_eq!((summary.records, summary.fields, summary.workflows), (2, 2, 1));
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused_with_the_place() {
    let file = written(&frames()[..2]);
    let whole = written(&frames());
    let end = whole.len() - 5 - 32 - 8;
    for at in (0..file.len()).chain(whole.len() - 60..whole.len()) {
        let said = said(&whole[..at]);
        let right = said.contains("no backup") || said.contains("the rest is missing");
        assert!(right, "cut at {at}: {said}");
    }
    assert_eq!(
        said(&whole[..end]),
        format!("the file cannot be used: at byte {end}: it ends here: the rest is missing")
    );
}

#[test]
fn a_file_that_is_damaged_anywhere_is_refused() {
    let whole = written(&frames());
    // Every byte of the small parts, some of the large one.
    for at in (0..400).chain((400..whole.len() - 200).step_by(997)).chain(whole.len() - 200..whole.len()) {
        let mut file = whole.clone();
        file[at] ^= 0x20;
        assert!(inspect(&file[..]).is_err(), "a bit of byte {at}");
    }
    let mut file = whole.clone();
    file.push(0);
    assert!(said(&file).contains("behind its end"));
}

#[test]
fn parts_that_were_left_out_or_swapped_are_seen() {
    let mut swapped = frames();
    swapped.swap(0, 3);
    // A file of its own holds: its checks are those of what it is.
    assert!(inspect(&written(&swapped)[..]).is_ok());
    let (a, b) = (written(&frames()), written(&swapped));
    let head = MAGIC.len() + 5 + 4 + 16 + 8 + 4 + 4 + 4 + env!("CARGO_PKG_VERSION").len() + CHECK;
    assert_eq!(a[..head], b[..head]);
    let first = head + 5 + 4 + 3 + 4 + 8 + CHECK;
    let without = [&a[..head], &a[first..]].concat();
    assert!(said(&without).contains(&format!("at byte {head}: it is damaged")), "{}", said(&without));
    let counted = [frames()[..3].to_vec(), frames()[5..].to_vec()].concat();
    assert!(said(&written(&counted)).contains("what its end says"));
    let lost = [frames()[1..2].to_vec(), frames()[5..].to_vec()].concat();
    assert!(said(&written(&lost)).contains("a payload of no record"));
}

#[test]
fn what_is_not_known_is_refused_with_the_way_out() {
    assert!(said(b"PK\x03\x04 something else").contains("at byte 0: this is no backup"));
    let mut writer = Writer::begin(Vec::new(), &HEAD).unwrap();
    writer.text(b"x").frame(b'Z').unwrap();
    assert!(said(&writer.out).contains("kind 'Z' is not known: use a newer Downbeat"));
    let mut out = MAGIC.to_vec();
    let mut writer =
        Writer { sum: Sha256::new_with_prefix(MAGIC), out: &mut out, body: Vec::new(), bytes: 0 };
    writer.put(&9_u32.to_be_bytes()).frame(kind::HEAD).unwrap();
    assert!(said(&out).contains("its format is 9, this version reads 1"));
    // A length that lies costs nothing.
    let lies = [&MAGIC[..], b"S", &(BODY_MAX - 1).to_be_bytes(), b"abc"].concat();
    assert!(said(&lies).contains("the rest is missing"));
}
