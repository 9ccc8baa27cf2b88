//! The images of a run, and what each part of them is for.

use omma_data::{Shared, Split, formats};

use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
};

/// The parts of a data set that a run uses.
#[derive(Clone)]
pub(crate) struct Splits {
    /// To learn from.
    pub(crate) train: Shared,
    /// Held out of these, to choose the best checkpoint by.
    pub(crate) validation: Shared,
    /// To judge by, once.
    pub(crate) test: Shared,
}

impl Splits {
    /// Opens the data, and gives the model its classes.
    pub(crate) fn open(recipe: &mut Recipe) -> Result<Self> {
        // A run may be resumed from another folder.
        recipe.data.name = formats::whole_name(&recipe.data.name);
        let spec = recipe.data_spec();
        let (all, test) = (formats::open(&spec, Split::Train)?, formats::open(&spec, Split::Test)?);
        if all.classes() != test.classes() {
            return Err(recipe_error(format!(
                "{}: the training images have classes {:?}, the test images {:?}",
                spec.name,
                all.classes(),
                test.classes()
            )));
        }
        recipe.model.classes = all.classes().len();
        let (train, validation) = recipe.data.parts(&all);
        Ok(Self { train, validation, test })
    }
}
