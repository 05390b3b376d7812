/// Declares a message: a struct whose fields stand in wire order, after the number byte.
///
/// ```
/// wire::message! {
///     /// RFC 4253 section 11.4.
///     pub struct Unimplemented = 3 {
///         /// Sequence number of the packet that was not understood.
///         pub sequence: u32,
///     }
/// }
/// let mut out = Vec::new();
/// Unimplemented { sequence: 7 }.encode(&mut out);
/// assert_eq!(Unimplemented::decode(&out), Ok(Unimplemented { sequence: 7 }));
/// ```
#[macro_export]
macro_rules! message {
    ($(#[$meta:meta])* $vis:vis struct $name:ident = $number:literal {
        $($(#[$fmeta:meta])* $fvis:vis $field:ident : $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty),* }
        impl $name {
            $crate::message!(@codec '_ , $number $(, $field : $ty)*);
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident<$lt:lifetime> = $number:literal {
        $($(#[$fmeta:meta])* $fvis:vis $field:ident : $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name<$lt> { $($(#[$fmeta])* $fvis $field: $ty),* }
        impl<$lt> $name<$lt> {
            $crate::message!(@codec $lt , $number $(, $field : $ty)*);
        }
    };
    (@codec $lt:lifetime , $number:literal $(, $field:ident : $ty:ty)*) => {
        /// The message number.
        pub const NUMBER: u8 = $number;

        /// Decodes a whole message, number byte included; trailing bytes are an error.
        pub fn decode(bytes: & $lt [u8]) -> Result<Self, $crate::WireError> {
            let mut r = $crate::FieldReader::new(bytes);
            let got = r.u8()?;
            if got != Self::NUMBER {
                return Err($crate::WireError::WrongMessage { expected: Self::NUMBER, got });
            }
            let message = Self { $($field: <$ty as $crate::Field<'_>>::read(&mut r)?),* };
            r.finish()?;
            Ok(message)
        }

        /// Appends the encoded message, number byte included.
        pub fn encode(&self, out: &mut Vec<u8>) {
            out.push(Self::NUMBER);
            $($crate::Field::write(&self.$field, out);)*
        }

        /// Returns the encoded message.
        pub fn to_bytes(&self) -> Vec<u8> {
            let mut out = Vec::new();
            self.encode(&mut out);
            out
        }
    };
}
