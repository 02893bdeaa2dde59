//! Fills the tables of functions that Level Zero's loader requests. Functions that this driver lacks return
//! `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`.

use crate::calls::{count, log};
use crate::device::*;
use crate::event::*;
use crate::list::*;
use crate::memory::*;
use crate::module::*;
use crate::queue::*;
use crate::sysman::*;
use crate::types::code::{INVALID_NULL_POINTER, UNSUPPORTED_FEATURE};
use std::ffi::c_void;

/// Records a call of a function that this driver lacks.
fn missing(name: &'static str) -> u32 {
    count(name);
    log(name, UNSUPPORTED_FEATURE);
    UNSUPPORTED_FEATURE
}

/// Returns the address of a function (`+`), or of a function that reports itself as missing (`-`).
macro_rules! address {
    (+ $name:ident) => {
        $name as *const c_void
    };
    (- $name:ident) => {{
        extern "C" fn stub() -> u32 {
            missing(stringify!($name))
        }
        stub as *const c_void
    }};
}

/// Exports the functions that fill the tables. The names are in the order of the tables' fields.
macro_rules! tables {
    ($($table:ident { $($kind:tt $name:ident,)* })*) => {
        $(
            /// Fills the table of the same name.
            ///
            /// # Safety
            /// The table must be null, or have the layout of Level Zero 1.8.
            #[allow(non_snake_case)] // Level Zero's name
            // SAFETY: only Level Zero drivers export this name, and the loader looks it up in each driver.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $table(_version: u32, table: *mut *const c_void) -> u32 {
                if table.is_null() {
                    return INVALID_NULL_POINTER;
                }
                let entries = [$(address!($kind $name)),*];
                for (at, entry) in entries.into_iter().enumerate() {
                    // SAFETY: the caller guarantees the table's layout.
                    unsafe { table.add(at).write(entry) };
                }
                0
            }
        )*
    };
}

tables! {
    zeGetGlobalProcAddrTable {
        +zeInit,
    }
    zeGetDriverProcAddrTable {
        +zeDriverGet, +zeDriverGetApiVersion, +zeDriverGetProperties, +zeDriverGetIpcProperties,
        +zeDriverGetExtensionProperties, +zeDriverGetExtensionFunctionAddress,
    }
    zeGetDeviceProcAddrTable {
        +zeDeviceGet, +zeDeviceGetSubDevices, +zeDeviceGetProperties, +zeDeviceGetComputeProperties,
        +zeDeviceGetModuleProperties, +zeDeviceGetCommandQueueGroupProperties, +zeDeviceGetMemoryProperties,
        +zeDeviceGetMemoryAccessProperties, +zeDeviceGetCacheProperties, -zeDeviceGetImageProperties,
        +zeDeviceGetExternalMemoryProperties, +zeDeviceGetP2PProperties, +zeDeviceCanAccessPeer,
        +zeDeviceGetStatus, +zeDeviceGetGlobalTimestamps, -zeDeviceReserveCacheExt,
        -zeDeviceSetCacheAdviceExt, +zeDevicePciGetPropertiesExt,
    }
    zeGetContextProcAddrTable {
        +zeContextCreate, +zeContextDestroy, +zeContextGetStatus, -zeContextSystemBarrier,
        +zeContextMakeMemoryResident, +zeContextEvictMemory, -zeContextMakeImageResident,
        -zeContextEvictImage, +zeContextCreateEx,
    }
    zeGetCommandQueueProcAddrTable {
        +zeCommandQueueCreate, +zeCommandQueueDestroy, +zeCommandQueueExecuteCommandLists,
        +zeCommandQueueSynchronize,
    }
    zeGetCommandListProcAddrTable {
        +zeCommandListCreate, +zeCommandListCreateImmediate, +zeCommandListDestroy, +zeCommandListClose,
        +zeCommandListReset, +zeCommandListAppendWriteGlobalTimestamp, +zeCommandListAppendBarrier,
        +zeCommandListAppendMemoryRangesBarrier, +zeCommandListAppendMemoryCopy,
        +zeCommandListAppendMemoryFill, -zeCommandListAppendMemoryCopyRegion,
        -zeCommandListAppendMemoryCopyFromContext, -zeCommandListAppendImageCopy,
        -zeCommandListAppendImageCopyRegion, -zeCommandListAppendImageCopyToMemory,
        -zeCommandListAppendImageCopyFromMemory, +zeCommandListAppendMemoryPrefetch,
        +zeCommandListAppendMemAdvise, +zeCommandListAppendSignalEvent, +zeCommandListAppendWaitOnEvents,
        +zeCommandListAppendEventReset, -zeCommandListAppendQueryKernelTimestamps,
        +zeCommandListAppendLaunchKernel, -zeCommandListAppendLaunchCooperativeKernel,
        -zeCommandListAppendLaunchKernelIndirect, -zeCommandListAppendLaunchMultipleKernelsIndirect,
        -zeCommandListAppendImageCopyToMemoryExt, -zeCommandListAppendImageCopyFromMemoryExt,
    }
    zeGetImageProcAddrTable {
        -zeImageGetProperties, -zeImageCreate, -zeImageDestroy, -zeImageGetAllocPropertiesExt,
    }
    zeGetFenceProcAddrTable {
        +zeFenceCreate, +zeFenceDestroy, +zeFenceHostSynchronize, +zeFenceQueryStatus, +zeFenceReset,
    }
    zeGetEventPoolProcAddrTable {
        +zeEventPoolCreate, +zeEventPoolDestroy, -zeEventPoolGetIpcHandle, -zeEventPoolOpenIpcHandle,
        -zeEventPoolCloseIpcHandle,
    }
    zeGetEventProcAddrTable {
        +zeEventCreate, +zeEventDestroy, +zeEventHostSignal, +zeEventHostSynchronize, +zeEventQueryStatus,
        +zeEventHostReset, +zeEventQueryKernelTimestamp,
    }
    zeGetModuleProcAddrTable {
        +zeModuleCreate, +zeModuleDestroy, -zeModuleDynamicLink, +zeModuleGetNativeBinary,
        -zeModuleGetGlobalPointer, +zeModuleGetKernelNames, +zeModuleGetProperties,
        -zeModuleGetFunctionPointer, -zeModuleInspectLinkageExt,
    }
    zeGetModuleBuildLogProcAddrTable {
        +zeModuleBuildLogDestroy, +zeModuleBuildLogGetString,
    }
    zeGetKernelProcAddrTable {
        +zeKernelCreate, +zeKernelDestroy, +zeKernelSetCacheConfig, +zeKernelSetGroupSize,
        +zeKernelSuggestGroupSize, +zeKernelSuggestMaxCooperativeGroupCount, +zeKernelSetArgumentValue,
        +zeKernelSetIndirectAccess, +zeKernelGetIndirectAccess, -zeKernelGetSourceAttributes,
        +zeKernelGetProperties, +zeKernelGetName,
    }
    zeGetSamplerProcAddrTable {
        -zeSamplerCreate, -zeSamplerDestroy,
    }
    zeGetPhysicalMemProcAddrTable {
        -zePhysicalMemCreate, -zePhysicalMemDestroy,
    }
    zeGetMemProcAddrTable {
        +zeMemAllocShared, +zeMemAllocDevice, +zeMemAllocHost, +zeMemFree, +zeMemGetAllocProperties,
        +zeMemGetAddressRange, +zeMemGetIpcHandle, +zeMemOpenIpcHandle, +zeMemCloseIpcHandle, +zeMemFreeExt,
    }
    zeGetVirtualMemProcAddrTable {
        -zeVirtualMemReserve, -zeVirtualMemFree, -zeVirtualMemQueryPageSize, -zeVirtualMemMap,
        -zeVirtualMemUnmap, -zeVirtualMemSetAccessAttribute, -zeVirtualMemGetAccessAttribute,
    }
    zetGetDeviceProcAddrTable {
        -zetDeviceGetDebugProperties,
    }
    zetGetContextProcAddrTable {
        -zetContextActivateMetricGroups,
    }
    zetGetCommandListProcAddrTable {
        -zetCommandListAppendMetricStreamerMarker, -zetCommandListAppendMetricQueryBegin,
        -zetCommandListAppendMetricQueryEnd, -zetCommandListAppendMetricMemoryBarrier,
    }
    zetGetModuleProcAddrTable {
        -zetModuleGetDebugInfo,
    }
    zetGetKernelProcAddrTable {
        -zetKernelGetProfileInfo,
    }
    zetGetMetricGroupProcAddrTable {
        -zetMetricGroupGet, -zetMetricGroupGetProperties, -zetMetricGroupCalculateMetricValues,
    }
    zetGetMetricProcAddrTable {
        -zetMetricGet, -zetMetricGetProperties,
    }
    zetGetMetricStreamerProcAddrTable {
        -zetMetricStreamerOpen, -zetMetricStreamerClose, -zetMetricStreamerReadData,
    }
    zetGetMetricQueryPoolProcAddrTable {
        -zetMetricQueryPoolCreate, -zetMetricQueryPoolDestroy,
    }
    zetGetMetricQueryProcAddrTable {
        -zetMetricQueryCreate, -zetMetricQueryDestroy, -zetMetricQueryReset, -zetMetricQueryGetData,
    }
    zetGetTracerExpProcAddrTable {
        -zetTracerExpCreate, -zetTracerExpDestroy, -zetTracerExpSetPrologues, -zetTracerExpSetEpilogues,
        -zetTracerExpSetEnabled,
    }
    zetGetDebugProcAddrTable {
        -zetDebugAttach, -zetDebugDetach, -zetDebugReadEvent, -zetDebugAcknowledgeEvent, -zetDebugInterrupt,
        -zetDebugResume, -zetDebugReadMemory, -zetDebugWriteMemory, -zetDebugGetRegisterSetProperties,
        -zetDebugReadRegisters, -zetDebugWriteRegisters,
    }
    zesGetDriverProcAddrTable {
        -zesDriverEventListen, -zesDriverEventListenEx,
    }
    zesGetDeviceProcAddrTable {
        -zesDeviceGetProperties, -zesDeviceGetState, -zesDeviceReset, -zesDeviceProcessesGetState,
        -zesDevicePciGetProperties, -zesDevicePciGetState, -zesDevicePciGetBars, -zesDevicePciGetStats,
        -zesDeviceEnumDiagnosticTestSuites, -zesDeviceEnumEngineGroups, -zesDeviceEventRegister,
        -zesDeviceEnumFabricPorts, -zesDeviceEnumFans, -zesDeviceEnumFirmwares,
        +zesDeviceEnumFrequencyDomains, -zesDeviceEnumLeds, +zesDeviceEnumMemoryModules,
        -zesDeviceEnumPerformanceFactorDomains, -zesDeviceEnumPowerDomains, -zesDeviceGetCardPowerDomain,
        -zesDeviceEnumPsus, -zesDeviceEnumRasErrorSets, -zesDeviceEnumSchedulers,
        -zesDeviceEnumStandbyDomains, +zesDeviceEnumTemperatureSensors, -zesDeviceEccAvailable,
        -zesDeviceEccConfigurable, -zesDeviceGetEccState, -zesDeviceSetEccState,
    }
    zesGetSchedulerProcAddrTable {
        -zesSchedulerGetProperties, -zesSchedulerGetCurrentMode, -zesSchedulerGetTimeoutModeProperties,
        -zesSchedulerGetTimesliceModeProperties, -zesSchedulerSetTimeoutMode, -zesSchedulerSetTimesliceMode,
        -zesSchedulerSetExclusiveMode, -zesSchedulerSetComputeUnitDebugMode,
    }
    zesGetPerformanceFactorProcAddrTable {
        -zesPerformanceFactorGetProperties, -zesPerformanceFactorGetConfig, -zesPerformanceFactorSetConfig,
    }
    zesGetPowerProcAddrTable {
        -zesPowerGetProperties, -zesPowerGetEnergyCounter, -zesPowerGetLimits, -zesPowerSetLimits,
        -zesPowerGetEnergyThreshold, -zesPowerSetEnergyThreshold, -zesPowerGetLimitsExt,
        -zesPowerSetLimitsExt,
    }
    zesGetFrequencyProcAddrTable {
        +zesFrequencyGetProperties, -zesFrequencyGetAvailableClocks, -zesFrequencyGetRange,
        -zesFrequencySetRange, +zesFrequencyGetState, -zesFrequencyGetThrottleTime,
        -zesFrequencyOcGetCapabilities, -zesFrequencyOcGetFrequencyTarget,
        -zesFrequencyOcSetFrequencyTarget, -zesFrequencyOcGetVoltageTarget, -zesFrequencyOcSetVoltageTarget,
        -zesFrequencyOcSetMode, -zesFrequencyOcGetMode, -zesFrequencyOcGetIccMax, -zesFrequencyOcSetIccMax,
        -zesFrequencyOcGetTjMax, -zesFrequencyOcSetTjMax,
    }
    zesGetEngineProcAddrTable {
        -zesEngineGetProperties, -zesEngineGetActivity,
    }
    zesGetStandbyProcAddrTable {
        -zesStandbyGetProperties, -zesStandbyGetMode, -zesStandbySetMode,
    }
    zesGetFirmwareProcAddrTable {
        -zesFirmwareGetProperties, -zesFirmwareFlash,
    }
    zesGetMemoryProcAddrTable {
        +zesMemoryGetProperties, +zesMemoryGetState, -zesMemoryGetBandwidth,
    }
    zesGetFabricPortProcAddrTable {
        -zesFabricPortGetProperties, -zesFabricPortGetLinkType, -zesFabricPortGetConfig,
        -zesFabricPortSetConfig, -zesFabricPortGetState, -zesFabricPortGetThroughput,
    }
    zesGetTemperatureProcAddrTable {
        +zesTemperatureGetProperties, -zesTemperatureGetConfig, -zesTemperatureSetConfig,
        +zesTemperatureGetState,
    }
    zesGetPsuProcAddrTable {
        -zesPsuGetProperties, -zesPsuGetState,
    }
    zesGetFanProcAddrTable {
        -zesFanGetProperties, -zesFanGetConfig, -zesFanSetDefaultMode, -zesFanSetFixedSpeedMode,
        -zesFanSetSpeedTableMode, -zesFanGetState,
    }
    zesGetLedProcAddrTable {
        -zesLedGetProperties, -zesLedGetState, -zesLedSetState, -zesLedSetColor,
    }
    zesGetRasProcAddrTable {
        -zesRasGetProperties, -zesRasGetConfig, -zesRasSetConfig, -zesRasGetState,
    }
    zesGetDiagnosticsProcAddrTable {
        -zesDiagnosticsGetProperties, -zesDiagnosticsGetTests, -zesDiagnosticsRunTests,
    }
}
