"""ResNet-20 for small images: He et al. (2016), section 4.2, with 1x1-convolution shortcuts."""

from torch import Tensor, nn

from cbs_lightning.models.classifier import Classifier

STAGES = ((16, 1), (32, 2), (64, 2))  # channels, stride of the first block
BLOCKS_PER_STAGE = 3


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        activated: Tensor = self.relu(out)
        return activated


class ResNet20Net(nn.Module):
    """A stem, three stages of three basic blocks, average pooling and a linear head.

    The stem is given as modules so that other stems share the rest; its last layer has
    `stem_channels` channels. Without one it is He et al.'s: a 3x3 convolution to 16 channels.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        stem: nn.Module | None = None,
        stem_channels: int = STAGES[0][0],
    ) -> None:
        super().__init__()
        self.stem = stem or nn.Sequential(
            nn.Conv2d(in_channels, stem_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(stem_channels),
            nn.ReLU(inplace=True),
        )
        blocks = []
        channels = stem_channels
        for out_channels, stride in STAGES:
            for block in range(BLOCKS_PER_STAGE):
                blocks.append(BasicBlock(channels, out_channels, stride if block == 0 else 1))
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.pool(self.blocks(self.stem(x))).flatten(1)
        logits: Tensor = self.head(features)
        return logits


class ResNet20(Classifier):
    def build_net(self, in_channels: int, num_classes: int) -> nn.Module:
        return ResNet20Net(in_channels, num_classes)
