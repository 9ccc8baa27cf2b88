//! The tokens that every text gets: what a file calls its post-processor.
//!
//! The library's own trusts the file, and stops where a template names a token that it does not have. A text by itself
//! needs only what stands in front of it and behind it.

use std::collections::HashMap;

use serde::Deserialize;

/// Tokens in front of a text's own, and behind them, in the file's ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Frame {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Frame {
    pub(super) fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.before.iter().chain(&self.after).copied()
    }
}

/// A file's post-processor.
#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Processor {
    TemplateProcessing {
        single: Vec<Piece>,
        special_tokens: HashMap<String, Special>,
    },
    BertProcessing {
        cls: (String, u32),
        sep: (String, u32),
    },
    RobertaProcessing {
        cls: (String, u32),
        sep: (String, u32),
    },
    /// Only says where in a text its tokens are.
    ByteLevel {},
    Sequence {
        processors: Vec<Processor>,
    },
}

/// A part of a template.
#[derive(Deserialize)]
pub(super) enum Piece {
    Sequence { id: String },
    SpecialToken { id: String },
}

#[derive(Deserialize)]
pub(super) struct Special {
    ids: Vec<u32>,
}

impl Processor {
    /// What it puts around a text; a template has the text once.
    pub(super) fn frame(&self) -> Result<Frame, String> {
        match self {
            Self::ByteLevel {} => Ok(Frame::default()),
            Self::BertProcessing { cls, sep } | Self::RobertaProcessing { cls, sep } => {
                Ok(Frame { before: vec![cls.1], after: vec![sep.1] })
            }
            Self::Sequence { processors } => {
                let mut all = Frame::default();
                for processor in processors {
                    let Frame { before, after } = processor.frame()?;
                    all.before.splice(..0, before);
                    all.after.extend(after);
                }
                Ok(all)
            }
            Self::TemplateProcessing { single, special_tokens } => {
                let (mut frame, mut texts) = (Frame::default(), 0);
                for piece in single {
                    match piece {
                        Piece::Sequence { id } if id == "A" => texts += 1,
                        Piece::Sequence { id } => {
                            return Err(format!("its template of one text has a text {id}"));
                        }
                        Piece::SpecialToken { id } => {
                            let special = special_tokens.get(id).ok_or_else(|| {
                                format!("its template has a token {id} that it does not define")
                            })?;
                            let side =
                                if texts == 0 { &mut frame.before } else { &mut frame.after };
                            side.extend(&special.ids);
                        }
                    }
                }
                match texts {
                    1 => Ok(frame),
                    _ => Err(format!("its template of one text has the text {texts} times")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(json: &str) -> Result<Frame, String> {
        serde_json::from_str::<Processor>(json).map_err(|error| error.to_string())?.frame()
    }

    #[test]
    fn processors_stand_around_each_other() {
        let bert = r#"{"type":"BertProcessing","cls":["[CLS]",5],"sep":["[SEP]",6]}"#;
        let bytes = r#"{"type":"ByteLevel","trim_offsets":true}"#;
        let template = r#"{"type":"TemplateProcessing","pair":[],
            "single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
            "special_tokens":{"x":{"id":"x","ids":[7,8],"tokens":["x","y"]}}}"#;
        let all = format!(r#"{{"type":"Sequence","processors":[{bytes},{bert},{template}]}}"#);
        assert_eq!(frame(&all), Ok(Frame { before: vec![7, 8, 5], after: vec![6] }));
        assert_eq!(frame(bytes), Ok(Frame::default()));
    }

    #[test]
    fn templates_that_lead_nowhere_are_refused() {
        let template = |single: &str| {
            frame(&format!(
                r#"{{"type":"TemplateProcessing","single":[{single}],"pair":[],"special_tokens":{{}}}}"#
            ))
        };
        let text = |id: &str| format!(r#"{{"Sequence":{{"id":"{id}","type_id":0}}}}"#);
        assert_eq!(template(&text("A")), Ok(Frame::default()));
        assert!(template(&text("B")).unwrap_err().contains("text B"));
        assert!(template("").unwrap_err().contains("0 times"));
        assert!(template(&[text("A"), text("A")].join(",")).unwrap_err().contains("2 times"));
        let unknown = r#"{"SpecialToken":{"id":"[SEP]","type_id":0}}"#;
        assert!(template(unknown).unwrap_err().contains("[SEP]"));
        assert!(frame(r#"{"type":"Magic"}"#).unwrap_err().contains("Magic"));
    }
}
