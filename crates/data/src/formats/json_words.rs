//! What JSON says of an image in words.

use serde_json::{Map, Value};

use super::columns::CAPTION;

/// The captions of an object: a text or a list of texts by one of the usual names, or a list called
/// `captions`. What is null says nothing; what is anything else is an error.
///
/// - `said`: the name that the user gives
pub(super) fn captions(
    object: &Map<String, Value>,
    said: Option<&str>,
) -> Result<Vec<String>, String> {
    let usual = || CAPTION.iter().copied().chain(["captions"]);
    let found = match said {
        Some(name) => object.get_key_value(name),
        None => usual().find_map(|name| object.get_key_value(name)),
    };
    let Some((name, value)) = found else { return Ok(Vec::new()) };
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.trim().to_owned()),
        _ => Err(format!("its {name:?} is neither a text nor a list of texts")),
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(texts) => texts.iter().map(text).collect(),
        one => text(one).map(|text| vec![text]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str, said: Option<&str>) -> Result<Vec<String>, String> {
        captions(&serde_json::from_str(json).unwrap(), said)
    }

    #[test]
    fn texts_and_lists_of_texts_are_captions() {
        assert_eq!(of(r#"{"caption": " a dog "}"#, None).unwrap(), ["a dog"]);
        assert_eq!(of(r#"{"captions": ["a", "b"], "x": 1}"#, None).unwrap(), ["a", "b"]);
        assert_eq!(of(r#"{"text": ["a"], "alt": "b"}"#, Some("alt")).unwrap(), ["b"]);
        assert!(of(r#"{"caption": null}"#, None).unwrap().is_empty());
        assert!(of(r#"{"label": 3}"#, None).unwrap().is_empty());
        for odd in [r#"{"caption": 3}"#, r#"{"captions": ["a", 3]}"#, r#"{"text": {}}"#] {
            assert!(of(odd, None).unwrap_err().contains("neither a text"));
        }
    }
}
