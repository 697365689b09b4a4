"""Patches against a strided convolution; changes of patch size and of channels."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail.model.patch import PatchEmbedding, change_channels, resize_patch_kernel


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [True, False])
def test_patches_are_a_convolution_whose_kernel_is_its_stride(memory, bias):
    embed = PatchEmbedding(3, 10, (4, 2), bias).double()
    for parameter in embed.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 12, 8, dtype=torch.float64)
    expected = F.conv2d(x, embed.weight, embed.bias, stride=(4, 2)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embed(x.to(memory_format=memory)), expected)
    crop = torch.randn(2, 3, 20, 11, dtype=torch.float64)[:, :, 3:15, 2:10]
    torch.testing.assert_close(embed(crop), F.conv2d(crop, embed.weight, embed.bias, stride=(4, 2)).flatten(2).transpose(1, 2))


def bilinear_matrix(old, new):
    """(new, old): half-pixel centres, no antialiasing."""
    matrix = np.zeros((new, old))
    for i in range(new):
        at = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
        low = int(at)
        matrix[i, low] += 1 - (at - low)
        matrix[i, min(low + 1, old - 1)] += at - low
    return matrix


@pytest.mark.parametrize(("old", "new"), [((8, 8), (12, 12)), ((8, 8), (5, 5)), ((4, 6), (8, 6)), ((16, 16), (14, 14))])
def test_a_resized_kernel_is_the_pseudo_inverse_of_flexivit(old, new):
    kernel = torch.randn(5, 3, *old, dtype=torch.float64)
    resize = np.kron(bilinear_matrix(old[0], new[0]), bilinear_matrix(old[1], new[1]))
    expected = np.linalg.pinv(resize.T) @ kernel.numpy().reshape(15, -1).T
    got = resize_patch_kernel(kernel, new)
    assert got.shape == (5, 3, *new)
    np.testing.assert_allclose(got.numpy().reshape(15, -1).T, expected, atol=1e-9)


def test_a_larger_kernel_gives_enlarged_patches_the_same_products():
    kernel, patch = torch.randn(5, 3, 8, 8), torch.randn(3, 8, 8)
    larger = F.interpolate(patch[None], size=(16, 16), mode="bilinear")[0]
    before = (kernel * patch).sum((1, 2, 3))
    after = (resize_patch_kernel(kernel, (16, 16)) * larger).sum((1, 2, 3))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert resize_patch_kernel(kernel, (8, 8)) is kernel


@pytest.mark.parametrize("channels", [1, 3, 6, 9])
def test_a_picture_of_equal_channels_keeps_its_products(channels):
    kernel, grey = torch.randn(5, 3, 4, 4), torch.randn(1, 4, 4)
    changed = change_channels(kernel, channels)
    assert changed.shape == (5, channels, 4, 4)
    torch.testing.assert_close((changed * grey).sum((1, 2, 3)), (kernel * grey).sum((1, 2, 3)), rtol=1e-4, atol=1e-4)


def test_other_numbers_of_channels_repeat_in_turn():
    kernel = torch.randn(2, 3, 2, 2)
    torch.testing.assert_close(change_channels(kernel, 5), torch.cat([kernel, kernel[:, :2]], 1) * 0.6)
    torch.testing.assert_close(change_channels(kernel, 2), kernel[:, :2] * 1.5)
