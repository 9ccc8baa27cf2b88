//! The studies that come with the program.

/// Names, and files by their names, of the studies in `studies/`.
pub(crate) const STUDIES: &[(&str, &[(&str, &str)])] = &[
    (
        "e3",
        &[
            ("study.toml", include_str!("../../studies/e3/study.toml")),
            ("vit.toml", include_str!("../../studies/e3/vit.toml")),
            ("vmoe.toml", include_str!("../../studies/e3/vmoe.toml")),
        ],
    ),
    (
        "limoe",
        &[
            ("study.toml", include_str!("../../studies/limoe/study.toml")),
            ("dense.toml", include_str!("../../studies/limoe/dense.toml")),
            ("sparse.toml", include_str!("../../studies/limoe/sparse.toml")),
        ],
    ),
    (
        "soft",
        &[
            ("study.toml", include_str!("../../studies/soft/study.toml")),
            ("layer.toml", include_str!("../../studies/soft/layer.toml")),
        ],
    ),
    (
        "soft-cifar10",
        &[
            ("study.toml", include_str!("../../studies/soft-cifar10/study.toml")),
            ("vit.toml", include_str!("../../studies/soft-cifar10/vit.toml")),
        ],
    ),
    (
        "vimoe",
        &[
            ("study.toml", include_str!("../../studies/vimoe/study.toml")),
            ("tail.toml", include_str!("../../studies/vimoe/tail.toml")),
        ],
    ),
    (
        "vimoe-segment",
        &[
            ("study.toml", include_str!("../../studies/vimoe-segment/study.toml")),
            ("tail.toml", include_str!("../../studies/vimoe-segment/tail.toml")),
        ],
    ),
    (
        "e3-finetune",
        &[
            ("study.toml", include_str!("../../studies/e3-finetune/study.toml")),
            ("upstream-vit.toml", include_str!("../../studies/e3-finetune/upstream-vit.toml")),
            ("upstream-vmoe.toml", include_str!("../../studies/e3-finetune/upstream-vmoe.toml")),
            ("fine-vit.toml", include_str!("../../studies/e3-finetune/fine-vit.toml")),
            ("fine-vmoe.toml", include_str!("../../studies/e3-finetune/fine-vmoe.toml")),
        ],
    ),
    (
        "e3-variants",
        &[
            ("study.toml", include_str!("../../studies/e3-variants/study.toml")),
            ("upstream-vmoe.toml", include_str!("../../studies/e3-variants/upstream-vmoe.toml")),
            ("fine-vmoe.toml", include_str!("../../studies/e3-variants/fine-vmoe.toml")),
            ("upstream-vit.toml", include_str!("../../studies/e3-variants/upstream-vit.toml")),
            ("fine-vit.toml", include_str!("../../studies/e3-variants/fine-vit.toml")),
        ],
    ),
    (
        "routers",
        &[
            ("study.toml", include_str!("../../studies/routers/study.toml")),
            ("dense.toml", include_str!("../../studies/routers/dense.toml")),
            ("sparse.toml", include_str!("../../studies/routers/sparse.toml")),
        ],
    ),
];
