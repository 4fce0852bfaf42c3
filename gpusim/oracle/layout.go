// SPDX-License-Identifier: Apache-2.0

package oracle

// These constants are the layout of the state file. gpusim/src/state.h declares the layout.
// TestLayout compiles the declaration and compares the constants.
const (
	stateMagic   = 0x314d495355504721
	stateVersion = 4

	maxGPUs     = 16
	maxProcs    = 1024
	historyRing = 1024
	nvmlUsers   = 2048
	maxIDs      = 2048

	// Process slot i locks byte lockBase + i of the file.
	lockBase = 0x4000000000

	stateSize         = 157594760
	stateMagicAt      = 0
	stateVersionAt    = 8
	stateGPUCountAt   = 12
	stateSizeAt       = 16
	stateClockAt      = 24
	stateHistoryAt    = 56 // the sequence number of the last entry
	stateNamesAt      = 240
	stateNamesSize    = 16
	stateGPUsAt       = 4096
	stateHistoriesAt  = 54400
	stateIdentitiesAt = 578688
	stateProcsAt      = 611456
	stateNVMLUsersAt  = 157111424

	gpuSize      = 2760
	gpuUUIDAt    = 0
	gpuNameAt    = 16
	gpuNameSize  = 96
	gpuPCIAt     = 112
	gpuPCISize   = 32
	gpuMemoryAt  = 144
	gpuMinorAt   = 152
	gpuContextAt = 168
	gpuMIGRoleAt = 336
	gpuBusyAt    = 368
	gpuLostAt    = 392
	gpuPeakAt    = 456

	migDevice = 2 // the role of a MIG device; greater: a destroyed one

	procSize       = 5376
	procInUseAt    = 0
	procSelfPidAt  = 4
	procPidNSAt    = 8
	procStartAt    = 16
	procSeenPidAt  = 32
	procCommAt     = 40
	procHostnameAt = 56
	procExecIDAt   = 136
	procGPUsAt     = 256

	useSize       = 320 // a process's record of one GPU
	useBytesAt    = 0
	usePeakAt     = 8
	useTimeAt     = 16
	useContextAt  = 24
	useContextsAt = 32
	useLaunchesAt = 40

	historySize       = 512
	historySeqAt      = 0
	historyStartAt    = 8
	historyEndAt      = 16
	historyPidNSAt    = 24
	historySelfPidAt  = 32
	historySeenPidAt  = 36
	historyCommAt     = 40
	historyHostnameAt = 56
	historyExecIDAt   = 120
	historyGPUsAt     = 256

	historyUseSize   = 16
	historyUsePeakAt = 0
	historyUseTimeAt = 8

	identitySize      = 16
	identityExecIDAt  = 0
	identitySelfPidAt = 8
	identityInUseAt   = 12

	nvmlUserSize       = 160
	nvmlUserExecIDAt   = 0
	nvmlUserPidNSAt    = 8
	nvmlUserStartAt    = 16
	nvmlUserCallsAt    = 24
	nvmlUserSelfPidAt  = 32
	nvmlUserSeenPidAt  = 36
	nvmlUserIdentityAt = 40
	nvmlUserInUseAt    = 44
	nvmlUserCommAt     = 48
	nvmlUserHostnameAt = 64

	commSize     = 16
	hostnameSize = 64
)
