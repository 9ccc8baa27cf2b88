//! What was found, as a page.

use std::path::Path;

use omma_base::Resolution;
use omma_data::Picture;
use omma_report::{Page, PictureCard, Thumbnail};

/// The longest side of a picture on the page.
const SIDE: f64 = 240.0;

/// A page with the photos that were found: their paths and scores, the best first. What cannot be read any more is
/// named without its picture.
pub(crate) fn page(query: &str, subtitle: &str, hits: &[(&Path, f32)]) -> String {
    let cards = hits.iter().map(|(path, score)| {
        let picture = Picture::open(path).map(|picture| thumbnail(&picture)).unwrap_or_else(|_| {
            let grey = Picture::filled(SIDE as usize, SIDE as usize / 2, [128; 3]);
            thumbnail(&grey)
        });
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let detail = format!("{score:.3} · {}", path.display());
        PictureCard { picture, alt: name.clone(), caption: name, good: None, detail }
    });
    Page::new(query, subtitle).section("The best").pictures(cards).html()
}

fn thumbnail(picture: &Picture) -> Thumbnail {
    let (width, height) = (picture.width as f64, picture.height as f64);
    let scale = (SIDE / width.max(height)).min(1.0);
    let pixels = |length: f64| ((length * scale).round() as usize).max(1);
    let small = picture.resized(Resolution::new(pixels(height), pixels(width)));
    Thumbnail::new(&small.pixels, small.width as u32, small.height as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_picture_and_nothing_of_a_name_is_markup() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a<b>.png");
        Picture::filled(900, 300, [200, 0, 0]).save_png(&path).unwrap();
        let gone = folder.path().join("gone.png");
        let html = page("<i>red</i>", "2 photos", &[(&path, 0.5), (&gone, -0.25)]);
        assert_eq!(html.matches("<img").count(), 2);
        assert!(html.contains("width=\"240\" height=\"80\"") && html.contains("0.500"));
        assert!(!html.contains("<i>") && !html.contains("a<b>"));
    }
}
