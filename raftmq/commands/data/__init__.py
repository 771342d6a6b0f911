"""Commands about what lies on disks and in object stores."""
