"""The operations: functions of tensors, each with its derivatives."""
