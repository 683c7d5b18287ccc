"""Networks that make an image of an image, as spandrel lists them: small ones, with all of their parts.

Nothing is downloaded: weights are seeded.
"""

import functools
import importlib

import torch

from .registry import Outputs, image, model

SMALL_SWIN = {"img_size": 16, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 2), "window_size": 8}
SWIN = {**SMALL_SWIN, "upscale": 4, "upsampler": "pixelshuffle"}
ONE_OF_EACH = {"nc": [16, 24, 32, 40], "nb": 1}

# name: (file in spandrel, class, arguments, size of the image)
SPANDREL = {
    "ATD": ("ATD.__arch.atd_arch", "ATD", {**SWIN, "category_size": 64, "num_tokens": 16}, 16),
    "CRAFT": (
        "CRAFT.__arch.CRAFT",
        "CRAFT",
        {"depths": [2, 2], "num_heads": [6, 6], "split_size_0": 4, "split_size_1": 8, "window_size": 8},
        16,
    ),
    "Compact": ("Compact.__arch.SRVGG", "SRVGGNetCompact", {"num_conv": 4}, 32),
    "Compact, relu, x2": (
        "Compact.__arch.SRVGG",
        "SRVGGNetCompact",
        {"num_conv": 4, "upscale": 2, "act_type": "relu"},
        32,
    ),
    "DAT": (
        "DAT.__arch.DAT",
        "DAT",
        {"img_size": 16, "embed_dim": 64, "split_size": [4, 8], "depth": [2, 2], "num_heads": [2, 2]},
        16,
    ),
    "DAT, direct": (
        "DAT.__arch.DAT",
        "DAT",
        {
            "img_size": 16,
            "embed_dim": 64,
            "split_size": [4, 8],
            "depth": [2],
            "num_heads": [2],
            "upsampler": "pixelshuffledirect",
        },
        16,
    ),
    "DCTLSA": ("DCTLSA.__arch.dctlsa", "DCTLSA", {"num_modules": 6}, 16),
    "DITN": (
        "DITN.__arch.DITN_Real",
        "DITN_Real",
        {"dim": 24, "ITL_blocks": 1, "SAL_blocks": 1},
        16,
    ),
    "DRCT": ("DRCT.__arch.drct_arch", "DRCT", {**SWIN, "gc": 8}, 16),
    "DRUNet": ("DRUNet.__arch.network_unet", "DRUNet", {"in_nc": 3, "out_nc": 3, **ONE_OF_EACH}, 32),
    "DRUNet, shuffles": (
        "DRUNet.__arch.network_unet",
        "DRUNet",
        {
            "in_nc": 3,
            "out_nc": 3,
            **ONE_OF_EACH,
            "downsample_mode": "avgpool",
            "upsample_mode": "pixelshuffle",
        },
        32,
    ),
    "DnCNN": ("DnCNN.__arch.network_dncnn", "DnCNN", {"in_nc": 3, "out_nc": 3, "nb": 5}, 32),
    "FDnCNN": (
        "DnCNN.__arch.network_dncnn",
        "DnCNN",
        {"in_nc": 3, "out_nc": 3, "nb": 5, "act_mode": "R", "mode": "FDnCNN"},
        32,
    ),
    "ESRGAN": ("ESRGAN.__arch.RRDB", "RRDBNet", {"num_filters": 32, "num_blocks": 2}, 24),
    "ESRGAN+, x2 from unshuffled": (
        "ESRGAN.__arch.RRDB",
        "RRDBNet",
        {"in_nc": 12, "num_filters": 32, "num_blocks": 2, "shuffle_factor": 2, "plus": True, "scale": 4},
        24,
    ),
    "ESRGAN, pixelshuffle": (
        "ESRGAN.__arch.RRDB",
        "RRDBNet",
        {"num_filters": 32, "num_blocks": 1, "upsampler": "pixel_shuffle"},
        24,
    ),
    "FBCNN": ("FBCNN.__arch.FBCNN", "FBCNN", {"nc": [16, 24, 32, 512], "nb": 1}, 32),
    "FDAT": (
        "FDAT.__arch.fdat",
        "FDAT",
        {"embed_dim": 24, "num_groups": 1, "depth_per_group": 1, "num_heads": 2},
        16,
    ),
    "FDAT, pixelshuffle": (
        "FDAT.__arch.fdat",
        "FDAT",
        {
            "embed_dim": 24,
            "num_groups": 1,
            "depth_per_group": 1,
            "num_heads": 2,
            "upsampler_type": "pixelshuffle",
            "unshuffle_mod": True,
            "scale": 2,
        },
        32,
    ),
    "FFTformer": (
        "FFTformer.__arch.fftformer_arch",
        "FFTformer",
        {"dim": 8, "num_blocks": [1, 1, 1], "num_refinement_blocks": 1},
        64,
    ),
    "GFPGAN": (
        "GFPGAN.__arch.gfpganv1_clean_arch",
        "GFPGANv1Clean",
        {"out_size": 64, "num_style_feat": 32, "narrow": 0.125, "different_w": True},
        64,
    ),
    "GRL": (
        "GRL.__arch.grl",
        "GRL",
        {
            "img_size": 16,
            "embed_dim": 24,
            "upscale": 4,
            "upsampler": "pixelshuffle",
            "depths": [2],
            "num_heads_window": [2],
            "num_heads_stripe": [2],
        },
        16,
    ),
    "HAT": (
        "HAT.__arch.HAT",
        "HAT",
        {**SWIN, "upscale": 4, "squeeze_factor": 6, "num_feat": 16},
        16,
    ),
    "HVI-CIDNet": (
        "HVICIDNet.__arch.cidnet",
        "CIDNet",
        {"channels": [8, 8, 16, 32], "heads": [1, 2, 4, 8]},
        32,
    ),
    "IPT": (
        "IPT.__arch.ipt",
        "IPT",
        {"patch_size": 24, "n_feats": 8, "num_heads": 2, "num_layers": 1, "scale": [4]},
        24,
    ),
    "KBNet-s": (
        "KBNet.__arch.kbnet_s",
        "KBNet_s",
        {"width": 8, "middle_blk_num": 1, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1]},
        32,
    ),
    "KBNet-l": (
        "KBNet.__arch.kbnet_l",
        "KBNet_l",
        {"dim": 48, "heads": [1, 1, 1, 1], "num_blocks": [1, 1, 1, 1], "num_refinement_blocks": 1},
        32,
    ),
    "MMRealSR": (
        "MMRealSR.__arch.mmrealsr_arch",
        "MMRRDBNet_test",
        {"num_in_ch": 3, "num_out_ch": 3, "num_feat": 16, "num_block": 1, "num_grow_ch": 8},
        32,
    ),
    "MixDehazeNet": (
        "MixDehazeNet.__arch.MixDehazeNet",
        "MixDehazeNet",
        {"embed_dims": [8, 16, 32, 16, 8]},
        64,
    ),
    "MoESR": (
        "MoESR.__arch.MoESR",
        "MoESR",
        {"dim": 24, "n_blocks": 1, "n_block": 1},
        24,
    ),
    "MoSR": ("MoSR.__arch.mosr_arch", "MoSR", {"n_block": 2, "dim": 24}, 24),
    "MoSR, dysample": ("MoSR.__arch.mosr_arch", "MoSR", {"n_block": 1, "dim": 24, "upsampler": "dys"}, 24),
    "MoSR, geometric": ("MoSR.__arch.mosr_arch", "MoSR", {"n_block": 1, "dim": 24, "upsampler": "gps"}, 24),
    "NAFNet": (
        "NAFNet.__arch.NAFNet_arch",
        "NAFNet",
        {"enc_blk_nums": [1, 1, 1], "dec_blk_nums": [1, 1, 1]},
        32,
    ),
    "OmniSR": ("OmniSR.__arch.OmniSR", "OmniSR", {"num_feat": 24}, 32),
    "PLKSR": ("PLKSR.__arch.PLKSR", "PLKSR", {"n_blocks": 2, "dim": 32}, 24),
    "PLKSR, sparse": (
        "PLKSR.__arch.PLKSR",
        "PLKSR",
        {"n_blocks": 2, "dim": 32, "ccm_type": "DCCM", "lk_type": "SparsePLK", "with_idt": True},
        24,
    ),
    "RealPLKSR": ("PLKSR.__arch.RealPLKSR", "RealPLKSR", {"n_blocks": 2, "dim": 32}, 24),
    "RealPLKSR, dysample": (
        "PLKSR.__arch.RealPLKSR",
        "RealPLKSR",
        {"n_blocks": 1, "dim": 32, "dysample": True, "layer_norm": True},
        24,
    ),
    "RCAN": (
        "RCAN.__arch.rcan_arch",
        "RCAN",
        {"n_resgroups": 1, "n_resblocks": 2, "n_feats": 32, "reduction": 8},
        24,
    ),
    "RGT": (
        "RGT.__arch.rgt",
        "RGT",
        {"img_size": 16, "embed_dim": 64, "depth": [2], "num_heads": [2]},
        16,
    ),
    "RealCUGAN x2": ("RealCUGAN.__arch.upcunet_v3", "UpCunet2x", {}, 64),
    "RealCUGAN x3": ("RealCUGAN.__arch.upcunet_v3", "UpCunet3x", {}, 64),
    "RealCUGAN x4, pro": ("RealCUGAN.__arch.upcunet_v3", "UpCunet4x", {"pro": True}, 64),
    "RealCUGAN x2, fast": ("RealCUGAN.__arch.upcunet_v3", "UpCunet2x_fast", {}, 64),
    "RestoreFormer": (
        "RestoreFormer.__arch.restoreformer_arch",
        "RestoreFormer",
        {
            "n_embed": 32,
            "embed_dim": 32,
            "ch": 32,
            "ch_mult": (1, 2),
            "num_res_blocks": 1,
            "resolution": 32,
            "z_channels": 32,
        },
        32,
    ),
    "Retinexformer": (
        "RetinexFormer.__arch.retinexformer_arch",
        "RetinexFormer",
        {"n_feat": 16, "stage": 1},
        32,
    ),
    "SAFMN": ("SAFMN.__arch.safmn", "SAFMN", {"dim": 36, "n_blocks": 2}, 32),
    "SAFMN-BCIE": (
        "SAFMNBCIE.__arch.safmn_bcie",
        "SAFMN_BCIE",
        {"dim": 36, "n_blocks": 2, "num_layers": 1},
        32,
    ),
    "SCUNet": ("SCUNet.__arch.SCUNet", "SCUNet", {"config": [2] * 7, "dim": 64, "input_resolution": 64}, 64),
    "SPAN": ("SPAN.__arch.span", "SPAN", {"num_in_ch": 3, "num_out_ch": 3, "feature_channels": 32}, 24),
    "SeemoRe": ("SeemoRe.__arch.seemore_arch", "SeemoRe", {"num_layers": 2, "embedding_dim": 24}, 24),
    "SwiftSRGAN": ("SwiftSRGAN.__arch.SwiftSRGAN", "Generator", {"num_blocks": 2, "num_channels": 32}, 24),
    "Swin2SR": ("Swin2SR.__arch.Swin2SR", "Swin2SR", {**SWIN, "upscale": 2}, 16),
    "SwinIR": ("SwinIR.__arch.SwinIR", "SwinIR", SWIN, 16),
    "SwinIR, nearest": (
        "SwinIR.__arch.SwinIR",
        "SwinIR",
        {**SWIN, "upsampler": "nearest+conv", "resi_connection": "3conv"},
        16,
    ),
    "Uformer": (
        "Uformer.__arch.Uformer",
        "Uformer",
        {"img_size": 128, "embed_dim": 8, "depths": [1] * 9, "modulator": True},
        128,
    ),
}


def class_of(file, kind):
    return getattr(importlib.import_module(f"spandrel.architectures.{file}"), kind)


def of_spandrel(file, kind, options, size):
    torch.manual_seed(0)
    network = class_of(file, kind)(**options).eval()
    if kind == "GFPGANv1Clean":  # else it draws noise
        network = Outputs(network, lambda network, x: network(x, randomize_noise=False)[0])
    return network, [image(size)]


for name, known in SPANDREL.items():
    model(name, "spandrel", "super-resolution", is_detector=False)(functools.partial(of_spandrel, *known))
