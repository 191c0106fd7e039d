from .byte_gpt import ByteGPT as ByteGPT
from .classifier import Classifier as Classifier
from .resnet20 import ResNet20 as ResNet20
from .resnet20 import ResNet20Net as ResNet20Net
from .resnet20_authors import ResNet20Authors as ResNet20Authors
from .torchvision_net import ResNet18 as ResNet18
from .torchvision_net import TorchvisionNet as TorchvisionNet
