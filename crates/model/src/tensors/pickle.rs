//! What a pickle asks for, found without following it.
//!
//! A pickle is a small program whose only way out of plain data is to name something importable: `GLOBAL`,
//! `INST` and `STACK_GLOBAL`. Nothing here is ever imported or called, so a hostile file can do no harm; but
//! a file that names `os.system` is not a file of weights, and reading the rest of it as if nothing were
//! wrong would hide that.

use std::collections::HashMap;

/// Names that files of weights have: what PyTorch's own `weights_only` accepts, and plain values of other
/// libraries that training scripts store beside the weights.
const KNOWN: &[&str] = &[
    "_codecs.encode",
    "argparse.Namespace",
    "builtins.bytearray",
    "builtins.complex",
    "builtins.dict",
    "builtins.list",
    "builtins.set",
    "builtins.slice",
    "collections.Counter",
    "collections.OrderedDict",
    "collections.defaultdict",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "pathlib.PosixPath",
    "torch.Size",
    "torch.Tensor",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
    "torch.storage._TypedStorage",
    "torch.storage._UntypedStorage",
];

/// Types of numbers, which are names in `torch` too.
const TYPES: &[&str] = &[
    "bfloat16",
    "bool",
    "complex64",
    "double",
    "float",
    "float16",
    "float32",
    "float64",
    "half",
    "int",
    "int16",
    "int32",
    "int64",
    "int8",
    "long",
    "short",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
];

fn is_known(name: &str) -> bool {
    let of_torch = name.strip_prefix("torch.").is_some_and(|name| {
        let storage = name.strip_suffix("Storage");
        TYPES.contains(&name)
            || storage.is_some_and(|kind| kind.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    });
    of_torch || KNOWN.contains(&name)
}

/// Reads one pickle and returns what follows it; fails where it names what a file of weights does not, or
/// where it is no pickle.
pub(super) fn check(pickle: &[u8]) -> Result<&[u8], String> {
    let mut scan = Scan { rest: pickle, recent: Vec::new(), memo: HashMap::new() };
    while scan.step()? {}
    Ok(scan.rest)
}

struct Scan<'a> {
    rest: &'a [u8],
    /// What was pushed last: texts, and nothing for anything else. `STACK_GLOBAL` takes two texts that
    /// were pushed right before it, so nothing needs to be popped in between.
    recent: Vec<Option<&'a [u8]>>,
    memo: HashMap<u64, Option<&'a [u8]>>,
}

impl<'a> Scan<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or("its pickle ends inside a value")?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: u64) -> Result<u64, String> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let line = self.take(end.ok_or("its pickle ends inside a line")? as u64)?;
        self.take(1)?;
        Ok(line)
    }

    /// A value whose length stands in front of it, in so many bytes.
    fn counted(&mut self, bytes: u64) -> Result<&'a [u8], String> {
        let count = self.number(bytes)?;
        self.take(count)
    }

    /// Passes over a value that is no text.
    fn pass(&mut self, bytes: u64) -> Result<(), String> {
        self.take(bytes)?;
        self.push(None);
        Ok(())
    }

    fn pass_counted(&mut self, bytes: u64) -> Result<(), String> {
        let count = self.number(bytes)?;
        self.pass(count)
    }

    fn push(&mut self, text: Option<&'a [u8]>) {
        self.recent.push(text);
        if self.recent.len() > 64 {
            self.recent.drain(..32);
        }
    }

    fn remember(&mut self, key: u64) {
        let last = self.recent.last().copied().flatten();
        self.memo.insert(key, last);
    }

    fn recall(&mut self, key: u64) {
        let text = self.memo.get(&key).copied().flatten();
        self.push(text);
    }

    fn name(&self, module: &[u8], name: &[u8]) -> Result<(), String> {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let name = format!("{}.{}", text(module), text(name));
        match is_known(&name) {
            true => Ok(()),
            false => Err(format!(
                "its pickle names {name}, which a file of weights does not need; nothing of it was \
                 executed, and nothing of it is read"
            )),
        }
    }

    /// One instruction; whether there are more.
    fn step(&mut self) -> Result<bool, String> {
        let key = |line: &[u8]| std::str::from_utf8(line).ok()?.trim().parse().ok();
        match self.take(1)?[0] {
            b'.' => return Ok(false),
            b'c' | b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                self.name(module, name)?;
                self.push(None);
            }
            0x93 => match self.recent[..] {
                [.., Some(module), Some(name)] => {
                    self.name(module, name)?;
                    self.push(None);
                }
                _ => return Err("its pickle makes up the name of what it imports".to_owned()),
            },
            // Names by numbers that a registry elsewhere has.
            0x82..=0x84 => return Err("its pickle names things by number".to_owned()),
            b'S' | b'V' => {
                let text = self.line()?;
                self.push(Some(text));
            }
            b'F' | b'I' | b'L' | b'P' => {
                self.line()?;
                self.push(None);
            }
            b'U' | 0x8c => {
                let text = self.counted(1)?;
                self.push(Some(text));
            }
            b'T' | b'X' => {
                let text = self.counted(4)?;
                self.push(Some(text));
            }
            0x8d => {
                let text = self.counted(8)?;
                self.push(Some(text));
            }
            b'C' | 0x8a => self.pass_counted(1)?,
            b'B' | 0x8b => self.pass_counted(4)?,
            0x8e | 0x96 => self.pass_counted(8)?,
            b'g' => {
                let line = self.line()?;
                self.recall(key(line).unwrap_or(u64::MAX));
            }
            b'h' => {
                let key = self.number(1)?;
                self.recall(key);
            }
            b'j' => {
                let key = self.number(4)?;
                self.recall(key);
            }
            b'p' => {
                let line = self.line()?;
                self.remember(key(line).unwrap_or(u64::MAX));
            }
            b'q' => {
                let key = self.number(1)?;
                self.remember(key);
            }
            b'r' => {
                let key = self.number(4)?;
                self.remember(key);
            }
            0x94 => self.remember(self.memo.len() as u64),
            b'K' => self.pass(1)?,
            b'M' => self.pass(2)?,
            b'J' => self.pass(4)?,
            b'G' => self.pass(8)?,
            0x80 => _ = self.take(1)?,
            0x95 => _ = self.take(8)?,
            // These take from the stack or push something that is no text.
            b'('
            | b'0'
            | b'1'
            | b'2'
            | b'N'
            | b'R'
            | b'a'
            | b'b'
            | b'd'
            | b'}'
            | b'e'
            | b'l'
            | b']'
            | b'o'
            | b's'
            | b't'
            | b')'
            | b'u'
            | b'Q'
            | 0x81
            | 0x85..=0x89
            | 0x8f..=0x92
            | 0x97
            | 0x98 => self.push(None),
            other => return Err(format!("its pickle has an unknown instruction {other:#04x}")),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_pass_and_others_are_named() {
        // pickle.dumps(collections.OrderedDict(), 2) and (…, 4)
        let two = b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01.rest";
        assert_eq!(check(two), Ok(&b"rest"[..]));
        let four = b"\x80\x04\x95\x22\0\0\0\0\0\0\0\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94.";
        assert_eq!(check(four), Ok(&b""[..]));
        for hostile in [
            &b"\x80\x02cposix\nsystem\nq\x00X\x02\0\0\0idq\x01\x85q\x02Rq\x03."[..],
            b"cos\nsystem\n(S'id'\ntR.",
            b"(S'id'\nios\nsystem\n.",
            b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
            // The same through the memo.
            b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x940h\x00h\x01\x93.",
        ] {
            let message = check(hostile).unwrap_err();
            assert!(message.contains("system"), "{message}");
        }
        assert!(check(b"\x80\x04K\x01K\x02\x93.").is_err());
        assert!(check(b"\x80\x02\x82\x01.").is_err());
        assert!(check(b"\x80\x02X\xff\xff\xff\xffshort").unwrap_err().contains("ends"));
    }
}
