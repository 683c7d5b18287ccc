"""Backbones of timm, and segmentation networks: seeded weights, small images."""

import functools

import torch

from .registry import Outputs, image, model

TIMM = (
    *("convnext_atto", "convmixer_768_32", "densenet121", "edgenext_xx_small", "efficientnet_b0"),
    *("efficientvit_b0", "fastvit_t8", "ghostnet_100", "hrnet_w18_small", "levit_128s"),
    *("maxvit_tiny_tf_224", "mobilenetv4_conv_small", "mobilevit_xxs", "regnety_002", "repvgg_a0"),
    *("resnext50_32x4d", "rexnet_100", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "volo_d1_224"),
)
SMP = (
    *("Unet", "UnetPlusPlus", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3Plus"),
    *("MAnet", "UPerNet", "Segformer"),
)
TORCHVISION = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")


def of_timm(name):
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False).eval(), [image(224)]


def of_smp(name):
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    network = getattr(smp, name)("resnet18", encoder_weights=None, classes=5)
    return network.eval(), [image(128)]


def of_torchvision(name):
    from torchvision.models import segmentation

    torch.manual_seed(0)
    network = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
    return Outputs(network.eval(), lambda network, x: network(x)["out"]), [image(128)]


for name in TIMM:
    model(name, "timm", "backbone", is_detector=False)(functools.partial(of_timm, name))
for name in SMP:
    model(f"{name}, resnet18", "segmentation_models_pytorch", "segmentation", is_detector=False)(
        functools.partial(of_smp, name)
    )
for name in TORCHVISION:
    model(name, "torchvision", "segmentation", is_detector=False)(functools.partial(of_torchvision, name))
