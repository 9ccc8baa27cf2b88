//! What a request asks for: images in any of three forms, and how they are to be looked at.

use std::time::Duration;

use axum::{body::Bytes, extract::Query, http::Uri};
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::Deserialize;
use tokio::time::Instant;

use crate::{
    body::Arrived,
    error::{Result, ServeError},
    multipart,
    options::Options,
};

/// Classes that are named, where nobody says how many.
const TOP: usize = 5;
/// Names of classes of a request, which are as many texts times eight for a model.
const MOST_LABELS: usize = 256;
/// Symbols of a name or a text.
const LONGEST_TEXT: usize = 1000;
/// Padding may be left out, as many programs do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wishes {
    /// Files as they came, not decoded.
    pub(crate) images: Vec<Bytes>,
    pub(crate) model: Option<String>,
    pub(crate) top: usize,
    pub(crate) experts: bool,
    /// Names of classes, for a model that compares images with texts.
    pub(crate) labels: Vec<String>,
    pub(crate) texts: Vec<String>,
    pub(crate) overlay: bool,
    pub(crate) deadline: Instant,
}

/// The same as it is written: in the address, in a form, or as JSON.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    image: Option<String>,
    images: Vec<String>,
    model: Option<String>,
    top: Option<usize>,
    experts: Option<bool>,
    labels: Option<Names>,
    text: Option<String>,
    texts: Vec<String>,
    overlay: Option<bool>,
    timeout_ms: Option<u64>,
}

/// A list, or names between commas.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Names {
    List(Vec<String>),
    Text(String),
}

/// In an address there are no lists, and nothing but text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InAddress {
    model: Option<String>,
    top: Option<String>,
    experts: Option<String>,
    labels: Option<String>,
    text: Option<String>,
    overlay: Option<String>,
    timeout_ms: Option<String>,
}

impl Wishes {
    /// Reads a request. The body may be an image, a form with several, or JSON with images in base64.
    pub(crate) fn of(arrived: &Arrived, options: &Options) -> Result<Self> {
        let mut written = in_address(&arrived.uri)?;
        let mut images = Vec::new();
        let (kind, whole) = arrived.content_type();
        match kind.as_str() {
            "application/json" => {
                let own: Written = serde_json::from_slice(&arrived.bytes)
                    .map_err(|error| ServeError::Malformed(format!("the JSON: {error}")))?;
                let encoded = own.image.iter().chain(&own.images);
                images = encoded.map(|text| decoded(text)).collect::<Result<_>>()?;
                written = own.over(written);
            }
            "multipart/form-data" => {
                let boundary = multipart::boundary(whole)
                    .ok_or_else(|| malformed("the form's content type names no boundary"))?;
                let parts = multipart::parts(&arrived.bytes, boundary);
                for part in parts.map_err(ServeError::Malformed)? {
                    match part.is_file || ["image", "images", "file"].contains(&&*part.name) {
                        true => images.push(part.bytes),
                        false => {
                            let text = String::from_utf8_lossy(&part.bytes).into_owned();
                            written.set(&part.name, text)?;
                        }
                    }
                }
            }
            // An empty body is no image; a text may be asked for in the address alone.
            _ if arrived.bytes.is_empty() => {}
            "" | "application/octet-stream" | "application/x-www-form-urlencoded" => {
                images.push(arrived.bytes.clone());
            }
            image if image.starts_with("image/") => images.push(arrived.bytes.clone()),
            other => {
                return Err(ServeError::MediaType(format!(
                    "{other} is neither an image (image/…), a form (multipart/form-data) nor JSON"
                )));
            }
        }
        let most = options.max_images.min(options.batching.max_queue);
        if images.len() > most {
            let found = images.len();
            return Err(ServeError::TooLarge(format!("{found} images are more than {most}")));
        }
        written.checked(images, arrived.deadline)
    }

    /// The same; fails without an image.
    pub(crate) fn with_images(self) -> Result<Self> {
        match self.images.is_empty() {
            true => Err(ServeError::Unprocessable("there is no image in the request".to_owned())),
            false => Ok(self),
        }
    }
}

fn malformed(why: &str) -> ServeError {
    ServeError::Malformed(why.to_owned())
}

fn in_address(uri: &Uri) -> Result<Written> {
    let Query(found): Query<InAddress> = Query::try_from_uri(uri)
        .map_err(|error| ServeError::Malformed(format!("the address: {}", error.body_text())))?;
    let InAddress { model, top, experts, labels, text, overlay, timeout_ms } = found;
    let mut written = Written::default();
    let all = [
        ("model", model),
        ("top", top),
        ("experts", experts),
        ("labels", labels),
        ("text", text),
        ("overlay", overlay),
        ("timeout_ms", timeout_ms),
    ];
    for (name, value) in all {
        if let Some(value) = value {
            written.set(name, value)?;
        }
    }
    Ok(written)
}

/// Base64, perhaps as a page has it (`data:image/png;base64,…`).
pub(crate) fn decoded(text: &str) -> Result<Bytes> {
    let text = match text.strip_prefix("data:") {
        Some(rest) => rest.split_once(";base64,").map_or(rest, |(_, data)| data),
        None => text,
    };
    let bytes = BASE64.decode(text.trim());
    bytes
        .map(Bytes::from)
        .map_err(|error| ServeError::Unprocessable(format!("an image is not in base64: {error}")))
}

impl Written {
    /// Sets one of them from text.
    fn set(&mut self, name: &str, text: String) -> Result<()> {
        let wrong = |what: &str| ServeError::Malformed(format!("{name}={text} is not {what}"));
        let number = || text.trim().parse().map_err(|_| wrong("a number"));
        let yes = || match text.trim() {
            "" | "1" | "true" | "yes" => Ok(true),
            "0" | "false" | "no" => Ok(false),
            _ => Err(wrong("true or false")),
        };
        match name {
            "model" => self.model = Some(text),
            "top" => self.top = Some(number()? as usize),
            "experts" => self.experts = Some(yes()?),
            "labels" => self.labels = Some(Names::Text(text)),
            "text" => self.text = Some(text),
            "overlay" => self.overlay = Some(yes()?),
            "timeout_ms" => self.timeout_ms = Some(number()?),
            _ => {
                return Err(ServeError::Malformed(format!(
                    "there is nothing called {name:?} to set"
                )));
            }
        }
        Ok(())
    }

    /// What is said here, or else there.
    fn over(self, other: Self) -> Self {
        Self {
            model: self.model.or(other.model),
            top: self.top.or(other.top),
            experts: self.experts.or(other.experts),
            labels: self.labels.or(other.labels),
            text: self.text.or(other.text),
            overlay: self.overlay.or(other.overlay),
            timeout_ms: self.timeout_ms.or(other.timeout_ms),
            ..self
        }
    }

    fn checked(self, images: Vec<Bytes>, latest: Instant) -> Result<Wishes> {
        let labels = match self.labels {
            None => Vec::new(),
            Some(Names::List(names)) => names,
            Some(Names::Text(text)) => text.split(',').map(str::to_owned).collect(),
        };
        let labels: Vec<String> = labels.iter().map(|name| name.trim().to_owned()).collect();
        let texts: Vec<String> = self.text.into_iter().chain(self.texts).collect();
        let wrong = |why: String| Err(ServeError::Unprocessable(why));
        if labels.iter().any(String::is_empty) {
            return wrong("one of the labels is empty".to_owned());
        }
        if labels.len().max(texts.len()) > MOST_LABELS {
            return wrong(format!("more than {MOST_LABELS} texts"));
        }
        if labels.iter().chain(&texts).any(|text| text.len() > LONGEST_TEXT) {
            return wrong(format!("a text of more than {LONGEST_TEXT} bytes"));
        }
        let sooner = self
            .timeout_ms
            .map(|timeout| Instant::now() + Duration::from_millis(timeout.min(1 << 32)));
        Ok(Wishes {
            images,
            model: self.model,
            top: self.top.unwrap_or(TOP).max(1),
            experts: self.experts.unwrap_or(false),
            labels,
            texts,
            overlay: self.overlay.unwrap_or(false),
            deadline: sooner.map_or(latest, |sooner| sooner.min(latest)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_how_and_unknown_words_are_errors() {
        let uri: Uri = "/predict?top=3&experts&labels=cat,a%20dog&model=m".parse().unwrap();
        let wishes = in_address(&uri).unwrap().checked(Vec::new(), Instant::now()).unwrap();
        assert_eq!((wishes.top, wishes.experts), (3, true));
        assert_eq!(wishes.labels, ["cat", "a dog"]);
        assert_eq!(wishes.model.as_deref(), Some("m"));
        for address in ["/x?top=many", "/x?experts=perhaps", "/x?tops=3"] {
            assert!(in_address(&address.parse().unwrap()).is_err(), "{address}");
        }
    }

    #[test]
    fn base64_is_read_as_pages_and_programs_write_it() {
        for text in ["aGk=", "aGk", "data:image/png;base64,aGk=", " aGk=\n"] {
            assert_eq!(decoded(text).unwrap(), "hi", "{text}");
        }
        assert_eq!(decoded("%%").unwrap_err().status(), 422);
    }
}
