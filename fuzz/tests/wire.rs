//! Fuzzes the data types of RFC 4251: no bytes make the reader panic or return more than there is,
//! and values are written as they were read.

use fuzz::{parse, some_bytes};
use wire::{Field, FieldReader, Mpint, NameList, RemainingBytes, WireError};

fn same<'a, T: Field<'a> + PartialEq + std::fmt::Debug>(bytes: &'a [u8]) {
    let mut r = FieldReader::new(bytes);
    if let Ok(value) = T::read(&mut r) {
        let taken = bytes.len() - r.left();
        let mut out = Vec::new();
        value.write(&mut out);
        assert_eq!(out, bytes[..taken], "{value:?}");
    }
}

#[test]
fn what_is_read_is_written_the_same() {
    parse(4096, |u| {
        // A valid length, more often than by chance.
        let mut bytes = some_bytes(u)?;
        if u.ratio(1, 2)? {
            let len = u32::try_from(bytes.len()).unwrap_or(0);
            bytes.splice(..0, len.to_be_bytes());
        }
        same::<u8>(&bytes);
        same::<u32>(&bytes);
        same::<u64>(&bytes);
        same::<&[u8]>(&bytes);
        same::<[u8; 16]>(&bytes);
        same::<Mpint<'_>>(&bytes);
        same::<NameList<'_>>(&bytes);
        same::<RemainingBytes<'_>>(&bytes);
        Ok(())
    });
}

#[test]
fn any_order_of_reads_stays_inside_the_message() {
    parse(4096, |u| {
        let bytes = some_bytes(u)?;
        let mut r = FieldReader::new(&bytes);
        let mut taken = 0;
        while !u.is_empty() {
            let before = r.left();
            let result = match u.int_in_range(0..=7)? {
                0 => r.u8().map(|_| ()),
                1 => r.u32().map(|_| ()),
                2 => r.u64().map(|_| ()),
                3 => r.string().map(|s| assert!(s.len() <= bytes.len())),
                4 => r.take(u.arbitrary()?).map(|_| ()),
                5 => Mpint::read(&mut r).map(|m| {
                    assert_ne!(m.magnitude().first(), Some(&0));
                }),
                6 => NameList::read(&mut r).map(|l| {
                    assert!(l.iter().all(|n| !n.is_empty() && n.is_ascii()));
                }),
                _ => r.array::<3>().map(|_| ()),
            };
            if let Err(WireError::Truncated { needed, left }) = result {
                assert!(needed > left);
            }
            taken += before - r.left();
            assert_eq!(taken + r.left(), bytes.len());
        }
        let left = r.left();
        assert_eq!(r.finish().is_ok(), left == 0);
        Ok(())
    });
}
