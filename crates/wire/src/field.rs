use crate::{FieldReader, WireError};

/// A type with an encoding in RFC 4251 section 5, or one built from such types.
pub trait Field<'a>: Sized {
    /// Decodes one value.
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError>;
    /// Appends the encoded value.
    fn write(&self, out: &mut Vec<u8>);
}

impl<'a> Field<'a> for u8 {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u8()
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
}

/// A boolean: zero is false, all other values are true (RFC 4251 section 5).
impl<'a> Field<'a> for bool {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u8().map(|b| b != 0)
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl<'a> Field<'a> for u32 {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u32()
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Field<'a> for u64 {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.u64()
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

/// A string: a uint32 length, then the bytes.
///
/// Writing panics on a string of 4 GiB, which no message here has.
impl<'a> Field<'a> for &'a [u8] {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.string()
    }
    fn write(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(self.len()).expect("an SSH string is shorter than 4 GiB");
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(self);
    }
}

/// Two values, one behind the other.
impl<'a, A: Field<'a>, B: Field<'a>> Field<'a> for (A, B) {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        Ok((A::read(r)?, B::read(r)?))
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
    }
}

/// Bytes of a fixed number without a length, such as the cookie of KEXINIT.
impl<'a, const N: usize> Field<'a> for [u8; N] {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        r.array()
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

/// The rest of a message, for fields whose layout depends on an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingBytes<'a>(pub &'a [u8]);

impl<'a> Field<'a> for RemainingBytes<'a> {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        Ok(Self(r.rest()))
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

/// A non-negative mpint, held as its big-endian magnitude without leading zeros.
///
/// Negative numbers occur in no message that is read here and are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mpint<'a>(&'a [u8]);

impl<'a> Mpint<'a> {
    /// Creates an mpint from big-endian bytes, with or without leading zeros.
    pub fn from_magnitude(bytes: &'a [u8]) -> Self {
        let zeros = bytes.iter().take_while(|b| **b == 0).count();
        Self(bytes.get(zeros..).unwrap_or_default())
    }

    /// Returns the big-endian magnitude without leading zeros; empty for 0.
    pub fn magnitude(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Field<'a> for Mpint<'a> {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        match r.string()? {
            [] => Ok(Self(&[])),
            [0] => Err(WireError::BadMpint),
            [0, next, ..] if *next < 0x80 => Err(WireError::BadMpint),
            [0, magnitude @ ..] => Ok(Self(magnitude)),
            [first, ..] if *first >= 0x80 => Err(WireError::BadMpint),
            magnitude => Ok(Self(magnitude)),
        }
    }
    fn write(&self, out: &mut Vec<u8>) {
        let pad = self.0.first().is_some_and(|b| *b >= 0x80);
        let len = self.0.len() + usize::from(pad);
        (u32::try_from(len).expect("an mpint is shorter than 4 GiB")).write(out);
        if pad {
            out.push(0);
        }
        out.extend_from_slice(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mpint(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
        let mut encoded = Vec::new();
        bytes.write(&mut encoded);
        Mpint::read(&mut FieldReader::new(&encoded)).map(|m| m.magnitude().to_vec())
    }

    /// The examples of RFC 4251 section 5.
    #[test]
    fn mpint_examples_of_the_rfc() {
        assert_eq!(mpint(&[]), Ok(vec![]));
        assert_eq!(mpint(&[0x00, 0x80]), Ok(vec![0x80]));
        assert_eq!(mpint(&[0xed, 0xcc]), Err(WireError::BadMpint));
        let mut out = Vec::new();
        Mpint::from_magnitude(&[0, 0, 0x80]).write(&mut out);
        assert_eq!(out, [0, 0, 0, 2, 0, 0x80]);
        let mut out = Vec::new();
        Mpint::from_magnitude(&[0, 0]).write(&mut out);
        assert_eq!(out, [0, 0, 0, 0]);
    }

    #[test]
    fn mpint_with_needless_zeros_is_refused() {
        assert_eq!(mpint(&[0]), Err(WireError::BadMpint));
        assert_eq!(mpint(&[0, 0x7f]), Err(WireError::BadMpint));
    }

    #[test]
    fn a_string_longer_than_the_message_is_refused_before_it_is_read() {
        let mut r = FieldReader::new(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(
            r.string(),
            Err(WireError::Truncated {
                needed: 0xffff_ffff,
                left: 1
            })
        );
    }
}
