package oracle

// The layout of the state file, as declared in gpusim/src/state.h. The C
// declaration is the truth; TestLayout compiles it and compares.
const (
	stateMagic   = 0x314d495355504721
	stateVersion = 3

	maxGPUs     = 16
	maxProcs    = 1024
	historyRing = 1024

	// The byte of the file that process slot i locks is lockBase + i.
	lockBase = 0x4000000000

	stateSize        = 157111424
	stateMagicAt     = 0
	stateVersionAt   = 8
	stateGPUCountAt  = 12
	stateSizeAt      = 16
	stateClockAt     = 24
	stateHistoryAt   = 56 // the sequence number of the last entry
	stateGPUsAt      = 4096
	stateHistoriesAt = 54400
	stateProcsAt     = 611456

	gpuSize     = 2760
	gpuUUIDAt   = 0
	gpuNameAt   = 16
	gpuNameSize = 96
	gpuPCIAt    = 112
	gpuPCISize  = 32
	gpuMemoryAt = 144
	gpuMinorAt  = 152
	gpuBusyAt   = 368
	gpuLostAt   = 392
	gpuPeakAt   = 456

	procSize       = 5376
	procInUseAt    = 0
	procSelfPidAt  = 4
	procPidNSAt    = 8
	procStartAt    = 16
	procSeenPidAt  = 32
	procCommAt     = 40
	procHostnameAt = 56
	procGPUsAt     = 256

	useSize       = 320 // what a process has on one GPU
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
	historySelfPidAt  = 32
	historySeenPidAt  = 36
	historyCommAt     = 40
	historyHostnameAt = 56
	historyGPUsAt     = 256

	historyUseSize   = 16
	historyUsePeakAt = 0
	historyUseTimeAt = 8

	commSize     = 16
	hostnameSize = 64
)
