"""A world of rendered streets, whose depth is measured with noise of known standard deviation."""

from fcal.data.street.frames import StreetConfig, StreetFrame, StreetObject, street_frame
from fcal.data.street.lidar import LidarConfig
from fcal.data.street.street_depth import StreetDepth, StreetSplits

__all__ = ["LidarConfig", "StreetConfig", "StreetDepth", "StreetFrame", "StreetObject", "StreetSplits", "street_frame"]
